"""simulate.observation: the series against jaxgb, the time domain and the noise's density."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from slotflow import bands
from slotflow.config import ObservationSettings, Preset
from slotflow.conventions import from_ldc
from slotflow.errors import InputError, OutputExistsError
from slotflow.noise import instrument_psd, standard_psd, window_power
from slotflow.readers import read_observation, read_truth
from slotflow.response import ResponseGrid, polarisation_coefficients, slow_basis
from slotflow.simulate.noise import band_psd
from slotflow.simulate.observation import (
    GalaxySettings,
    read_catalogue,
    simulate_observation,
    source_snr,
)
from slotflow.simulate.orbits import orbits
from slotflow.simulate.population import expected_number
from slotflow.simulate.sample import response_snr, simulate_band
from slotflow.simulate.waveforms import accumulate, jaxgb_response

SETTINGS = ObservationSettings()
CATALOGUE = Path(__file__).parents[1] / "data" / "verification_binaries.csv"
T = SETTINGS.duration


def _sources(number: int, seed: int, fmin: float = 1e-3, fmax: float = 2.1e-3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack(
        [
            rng.uniform(fmin, fmax, number),
            rng.uniform(-0.1, 0.3, number) / T**2,
            np.exp(rng.uniform(-51, -49, number)),
            rng.uniform(0, 2 * np.pi, number),
            np.arcsin(rng.uniform(-1, 1, number)),
            rng.uniform(0, np.pi, number),
            np.arccos(rng.uniform(-1, 1, number)),
            rng.uniform(0, 2 * np.pi, number),
        ],
        axis=-1,
    )


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A year with twenty sources and nothing else."""
    path = tmp_path_factory.mktemp("observation") / "quiet.h5"
    sources = _sources(20, 3)
    simulate_observation(path, SETTINGS, 1, sources, noise=False)
    return path, sources


@pytest.mark.parametrize(
    ("n", "tolerance"),
    [
        # jaxgb with n samples: what is beyond +- n/2 bins folds back or is cut off. Seen, for six
        # draws of isotropic sources: 1.8-3.4e-4, 1.6-3.9e-5, 1.1-3.7e-6.
        (256, 4e-4),
        (512, 1e-4),
        (1024, 1e-5),
    ],
)
def test_bands_of_the_series_are_those_of_jaxgb(
    quiet: tuple[Path, np.ndarray], n: int, tolerance: float
) -> None:
    path, sources = quiet
    spectrum = bands.spectrum(read_observation(path), T, SETTINGS.tukey, fmax=2.2e-3)
    response, first = jaxgb_response(sources, SETTINGS, n)
    error, norm = np.zeros(2), np.zeros(2)
    for centre in np.rint(sources[:, 0] * T).astype(int):
        band = spectrum.band(int(centre) - 128, 256)
        direct = accumulate(response, first, band.first_bin, 256)
        error += (np.abs(band.data - direct)[:2] ** 2).sum(axis=1)
        norm += (np.abs(direct)[:2] ** 2).sum(axis=1)
    assert (np.sqrt(error / norm) < tolerance).all()
    assert np.abs(spectrum.data[2]).max() < 1e-12 * np.abs(spectrum.data[0]).max()


def test_a_training_band_as_a_time_series(tmp_path: Path) -> None:
    """The simulator's own band, whitened, from the series of the same sources."""
    preset = Preset()
    index = next(i for i in range(20) if simulate_band(preset, 7, i).count > 1)
    band = simulate_band(preset, 7, index)
    assert band.outside_count <= len(band.outside)
    sources = np.concatenate([band.sources, band.outside])
    sources = sources[np.isfinite(sources[:, 0])]
    simulate_observation(tmp_path / "band.h5", preset.observation, 1, sources, noise=False)
    tukey = preset.observation.tukey
    spectrum = bands.spectrum(read_observation(tmp_path / "band.h5"), T, tukey, fmax=2.5e-3)
    bins = preset.prior.bins
    psd = standard_psd((band.first_bin + np.arange(bins)) / T, preset.observation)
    white = bands.whiten(spectrum.band(band.first_bin, bins).data, psd, T, tukey)
    error = np.linalg.norm((white - band.signal)[:2], axis=1)
    # the band's own 256 bins a source cut off 1.8 to 5.2e-4 of its norm in twelve bands; here 3e-4
    assert (error < 4e-4 * np.linalg.norm(band.signal[:2], axis=1)).all()


def test_the_first_and_last_samples_in_the_time_domain(tmp_path: Path) -> None:
    """No window is left in the series, and f0 and phi0 refer to t0: sample by sample."""
    settings = SETTINGS.model_copy(update={"t0": 1.234e7})
    source = _sources(1, 8, fmax=1.1e-3)
    source[0, 1] = 3e-16  # 0.3 bins in a year
    simulate_observation(tmp_path / "one.h5", settings, 1, source, noise=False)
    observation = read_observation(tmp_path / "one.h5")
    assert observation.t0 == observation.start == settings.t0
    aet = bands.xyz_to_aet(observation.tdi)
    orbit = orbits(settings)
    for samples in (np.arange(256), np.arange(SETTINGS.samples - 256, SETTINGS.samples)):
        times = samples * settings.dt
        positions = orbit.compute_position(settings.t0 + times, [1, 2, 3]).transpose(1, 2, 0)
        grid = ResponseGrid(T, settings.t0, times, positions.copy(), orbit.L, np.ones(256))
        slow, centre = slow_basis(source[:, [0, 1, 3, 4]], grid)
        complex_signal = np.einsum("p,pct->ct", polarisation_coefficients(source)[0], slow[0])
        expected = (complex_signal * np.exp(2j * np.pi * centre[0] * times / T)).real
        scale = np.abs(complex_signal[:2]).max()
        np.testing.assert_allclose(aet[:2, samples], expected[:2], atol=2e-5 * scale)


def test_tdi2_gives_the_same_bands(tmp_path: Path, quiet: tuple[Path, np.ndarray]) -> None:
    path, sources = quiet
    second = SETTINGS.model_copy(update={"tdi_generation": "2.0"})
    simulate_observation(tmp_path / "second.h5", second, 1, sources, noise=False)
    observation = read_observation(tmp_path / "second.h5")
    assert observation.generation == "2.0"
    result = bands.spectrum(observation, T, SETTINGS.tukey, fmax=2.2e-3)
    expected = bands.spectrum(read_observation(path), T, SETTINGS.tukey, fmax=2.2e-3)
    error = np.linalg.norm(result.data - expected.data, axis=1)[:2]
    assert (error < 1e-4 * np.linalg.norm(expected.data, axis=1)[:2]).all()


def test_noise_has_the_instruments_density(tmp_path: Path) -> None:
    simulate_observation(tmp_path / "noise.h5", SETTINGS, 5)
    spectrum = bands.spectrum(read_observation(tmp_path / "noise.h5"), T, SETTINGS.tukey)
    frequency = np.arange(spectrum.data.shape[1]) / T
    for low, high in ((1e-4, 3e-4), (1e-3, 2e-3), (3e-3, 5e-3), (7e-3, 8.3e-3)):
        first, bins = int(low * T), int((high - low) * T)
        psd = instrument_psd(frequency[first : first + bins])
        white = bands.whiten(spectrum.band(first, bins).data, psd, T, SETTINGS.tukey)
        mean = np.mean(np.abs(white) ** 2, axis=1)
        np.testing.assert_allclose(mean, 1.0, atol=4.5 / np.sqrt(0.9 * bins))
        # uncorrelated channels, circular
        cross = white @ white.conj().T / bins
        assert np.abs(cross - np.diag(np.diag(cross))).max() < 4.5 / np.sqrt(0.9 * bins)
        assert np.abs((white**2).mean(axis=1)).max() < 4.5 / np.sqrt(0.9 * bins)
    truth = read_truth(tmp_path / "noise.h5")
    assert truth is None


def test_a_galaxy(tmp_path: Path) -> None:
    """Members above 4 mHz: their number, their SNRs, the file's two catalogues, the seed."""
    given = _sources(2, 1, fmin=1.5e-3)
    galaxy = GalaxySettings(fmin=4e-3, truth_snr=7.0)
    names = ("AM CVn", "ä" * 30)
    calls: list[tuple[int, int]] = []
    paths = [tmp_path / f"{i}.h5" for i in range(3)]
    summary = simulate_observation(
        paths[0], SETTINGS, 11, given, names, galaxy=galaxy, compact=True,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    mean = expected_number(4e-3, 0.5 / SETTINGS.dt)
    assert abs(summary.binaries - mean) < 4.5 * np.sqrt(mean)
    assert calls[-1] == (summary.binaries + 2, summary.binaries + 2)

    truth = read_truth(paths[0])
    assert truth is not None
    assert len(truth.names) == summary.kept
    assert truth.names[0] == "AM CVn"
    np.testing.assert_array_equal(truth.sources[:2], given)
    members = truth.sources[2:]
    assert 0.5 * mean < len(members) < mean  # most stand out at these frequencies
    assert (truth.snr[2:] > 7.0).all()
    assert members[:, 0].min() >= 4e-3

    # SNR as the simulator of bands computes it, with jaxgb
    few = truth.sources[[0, 1, 2, 50, 200]]
    response, first = jaxgb_response(few, SETTINGS, 256)
    psd = band_psd(1, int(9e-3 * T), SETTINGS).total
    level = np.sqrt(0.5 * T * window_power(SETTINGS.tukey) * psd[:2])
    expected = response_snr(response[:, :2], first, level, 1)
    np.testing.assert_allclose(truth.snr[[0, 1, 2, 50, 200]], expected, rtol=1e-3)

    with h5py.File(paths[0]) as file:
        tdi = file["obs/tdi"]
        assert tdi.shape == (SETTINGS.samples, 1)
        assert tdi.dtype.names == ("t", "X", "Y", "Z")
        assert tdi.dtype["X"] == np.float32
        table = file["sky/dgb/cat"][:, 0]
        assert file.attrs["galaxy_binaries"] == summary.binaries
        back = from_ldc({name: table[name] for name in table.dtype.names[1:]})
        np.testing.assert_allclose(back / members, 1.0, rtol=0, atol=1e-7)
        assert file["sky/vgb/cat"]["Name"][0, 0] == b"AM CVn"
    assert paths[0].stat().st_size < 5.5e6

    simulate_observation(paths[1], SETTINGS, 11, given, names, galaxy=galaxy, compact=True)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    simulate_observation(paths[2], SETTINGS, 12, given, names, galaxy=galaxy, compact=True)
    a, b = (read_observation(p).tdi for p in (paths[0], paths[2]))
    assert np.corrcoef(a[0], b[0])[0, 1] < 0.1


def test_compact_files_lose_little(tmp_path: Path) -> None:
    """Rounding, against the noise it is added to: nothing in A and E, little in T."""
    spectra = []
    for compact in (False, True):
        path = tmp_path / f"{compact}.h5"
        simulate_observation(path, SETTINGS, 5, compact=compact)
        spectra.append(bands.spectrum(read_observation(path), T, SETTINGS.tukey))
    difference = spectra[1].data - spectra[0].data
    for low, high, limit in ((1e-4, 2e-4, 3e-3), (1e-3, 2e-3, 2e-5)):
        part = slice(int(low * T), int(high * T))
        frequency = np.arange(part.start, part.stop) / T
        relative = np.abs(difference[:, part]) ** 2 / (instrument_psd(frequency) * T / 2)
        assert (relative.mean(axis=1)[:2] < 1e-8).all()
        assert relative.mean(axis=1)[2] < limit


def test_loud_members_are_chosen_on_a_sound_bound(tmp_path: Path) -> None:
    """All members above the threshold are found, none is lost by the first, rough cut."""
    galaxy = GalaxySettings(fmin=4e-3, truth_snr=20.0)
    few = tmp_path / "few.h5"
    every = tmp_path / "all.h5"
    simulate_observation(few, SETTINGS, 2, galaxy=galaxy, noise=False)
    simulate_observation(
        every, SETTINGS, 2, galaxy=GalaxySettings(fmin=4e-3, truth_snr=0.0), noise=False
    )
    some, complete = read_truth(few), read_truth(every)
    assert some is not None
    assert complete is not None
    np.testing.assert_array_equal(some.snr, complete.snr[complete.snr > 20.0])


def test_what_cannot_be_simulated(tmp_path: Path) -> None:
    path = tmp_path / "input.h5"
    path.write_text("mine")
    with pytest.raises(OutputExistsError, match=r"input\.h5: exists already"):
        simulate_observation(path, SETTINGS, 1, _sources(1, 1))
    assert path.read_text() == "mine"
    fast = _sources(1, 1)
    fast[0, 0] = 9e-3
    with pytest.raises(InputError, match=r"source 'HM Cnc': f0 = 0\.009 Hz is outside"):
        simulate_observation(path, SETTINGS, 1, fast, ["HM Cnc"], force=True)
    fast[0, :2] = 5e-3, 1e-9
    with pytest.raises(InputError, match=r"f0 = .* fdot = 1e-09 Hz/s: the signal is wider"):
        simulate_observation(path, SETTINGS, 1, fast, force=True)
    odd = SETTINGS.model_copy(update={"samples": 524_290})
    with pytest.raises(InputError, match="samples 524290: a multiple of 8 expected"):
        simulate_observation(path, odd, 1, force=True)
    with pytest.raises(InputError, match="cannot be written"):
        simulate_observation(path / "below.h5", SETTINGS, 1, _sources(1, 1), noise=False)
    with pytest.raises(InputError, match="cannot be written"):
        simulate_observation(tmp_path, SETTINGS, 1, _sources(1, 1), force=True)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_am_cvn_stands_out_of_the_confusion_in_one_year() -> None:
    """A range, not a published number: those (HM Cnc and others above 3 mHz, four years, 10 pm)
    are of binaries outside the 1 to 2.1 mHz that the catalogue covers."""
    catalogue = read_catalogue(CATALOGUE)
    snr = dict(zip(catalogue.names, source_snr(catalogue.sources, SETTINGS), strict=True))
    assert 10 < snr["AM CVn"] < 30


def test_the_shipped_catalogue() -> None:
    names, sources = read_catalogue(CATALOGUE)
    assert names[:2] == ("AM CVn", "HP Lib")
    assert sources.shape == (13, 8)
    expected = [1.9441447221e-03, 6.061897e-18, 2.829116e-22, np.radians(188.7275),
                np.radians(37.62892), 0.31, np.radians(43.0), 0.90]  # fmt: skip
    np.testing.assert_allclose(sources[0], expected, rtol=1e-12)


GOOD = "name,f0,fdot,amplitude,ra,dec,psi,iota,phi0,comment\n,2e-3,0,1e-22,-0.5,0.3,0.2,1.0,7.0,x\n"


def test_plain_columns(tmp_path: Path) -> None:
    path = tmp_path / "sources.csv"
    path.write_text("\ufeff" + GOOD + "\n", encoding="utf-8")
    names, sources = read_catalogue(path)
    assert names == ("source 1",)
    expected = [2e-3, 0, 1e-22, 2 * np.pi - 0.5, 0.3, 0.2, 1.0, 7.0 - 2 * np.pi]
    np.testing.assert_allclose(sources, [expected], rtol=1e-14)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2e-3", "2 mHz", r"sources\.csv: row 2, column 'f0': '2 mHz' is not a number"),
        ("2e-3", "-2e-3", r"row 2, column 'f0': '-2e-3' is not a frequency in Hz between"),
        ("2e-3", "nan", r"column 'f0': 'nan' is not finite"),
        ("1e-22", "0", r"column 'amplitude': '0' is not a strain amplitude"),
        ("0.3,0.2", "30,0.2", r"column 'dec': '30' is not a declination of -90 to 90 deg"),
        ("1.0,7.0", "43,7.0", r"column 'iota': '43' is not an inclination"),
        ("1.0,7.0", ",7.0", r"column 'iota': '' is not a number"),
        (",x\n", "\n", r"row 2: 9 values for 10 columns"),
        ("fdot,", "drift,", r"no column for fdot \(one of fdot, fdot_Hz_s\)"),
        ("comment", "ra_deg", r"more than one column for ra: ra, ra_deg"),
        (GOOD, "", "empty; a header row is expected"),
        (GOOD[GOOD.index("\n") + 1 :], "", "no sources below the header row"),
        (",x\n", ',"x\n', "not a CSV file in UTF-8"),
    ],
)
def test_catalogues_that_cannot_be_read(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "sources.csv"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_catalogue(path)


def test_catalogues_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        read_catalogue(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\x89HDF\xff\xfe")
    with pytest.raises(InputError, match=r"binary\.csv: not a CSV file in UTF-8"):
        read_catalogue(tmp_path / "binary.csv")
