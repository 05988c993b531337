"""simulate.observation: orbits, noise, foreground, population and gaps of the settings."""

from dataclasses import replace
from pathlib import Path

import h5py
import lisaorbits
import numpy as np
import pytest
import scipy.signal

from slotflow import bands
from slotflow.assumptions import check_orbit
from slotflow.config import GapSettings, ObservationSettings, PopulationSettings
from slotflow.errors import InputError
from slotflow.gaps import draw_gaps
from slotflow.noise import confusion_psd, instrument_psd
from slotflow.readers import read_observation, read_truth
from slotflow.simulate.observation import GalaxySettings, simulate_observation, source_snr
from slotflow.simulate.waveforms import jaxgb_response
from tests.chain import untrained_model
from tests.synthetic import random_sources

SAMPLES = 2**14
SMALL = ObservationSettings(samples=SAMPLES)
T = SMALL.duration  # 11.4 days
ORBITS = {
    "another phase": {"orbit_lambda1": 0.7, "orbit_m_init1": -2.1, "arm_length": 2.49e9},
    "Keplerian": {"orbit": "keplerian", "t0": 4.2e7},
    "file": {"orbit": "file", "orbit_file": "orbits.h5", "t0": 3e6},
}


def small(**changes: object) -> ObservationSettings:
    return ObservationSettings(samples=SAMPLES, **changes)


def orbit_file(path: Path, t0: float = -1e6, days: int = 200, m_init1: float = 1.1) -> None:
    orbit = lisaorbits.KeplerianOrbits(m_init1=m_init1)
    orbit.write(str(path), dt=21600.0, size=4 * days, t0=t0, mode="w")


def one_source(seed: int = 1, f0: float = 3e-3) -> np.ndarray:
    source = random_sources(np.random.default_rng(seed), 1, f0, f0, T)
    source[:, 2] = 1e-21
    return source


@pytest.mark.parametrize("generation", ["1.5", "2.0"])
@pytest.mark.parametrize("name", ORBITS)
def test_the_series_is_jaxgbs(
    name: str, generation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    orbit_file(Path("orbits.h5"))
    # jaxgb applies TDI 2's delays after the window, the file before it: 5e-4 in 11 days, 1e-4 in 45
    settings = ObservationSettings(samples=4 * SAMPLES, tdi_generation=generation, **ORBITS[name])
    source = one_source()
    simulate_observation("one.h5", settings, 1, source, noise=False)
    with h5py.File("one.h5") as file:
        tdi = file["obs/tdi"][:, 0]
        stored = ObservationSettings.model_validate_json(file.attrs["settings"])
    # jaxgb's own TDI generation, by a plain windowed transform of the file's series
    window = scipy.signal.get_window(("tukey", settings.tukey), settings.samples)
    aet = bands.xyz_to_aet(np.stack([tdi[c] for c in "XYZ"]))
    spectrum = settings.dt * np.fft.rfft(window * aet)
    expected, first = jaxgb_response(source, stored, 1024)
    seen = spectrum[:2, first[0] : first[0] + 1024]
    assert np.linalg.norm(seen - expected[0, :2]) < 2.5e-4 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", ORBITS)
def test_a_model_takes_data_of_its_own_orbit_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    orbit_file(Path("orbits.h5"))
    simulate_observation("a.h5", small(**ORBITS[name]), 1)
    data = read_observation("a.h5")
    with h5py.File("a.h5") as file:
        own = ObservationSettings.model_validate_json(file.attrs["settings"])
    model = untrained_model()

    def check(observation: ObservationSettings) -> tuple[str, ...]:
        preset = model.preset.model_copy(update={"observation": observation})
        grid = replace(model.grid, t0=observation.t0)
        return check_orbit(data, replace(model, preset=preset, grid=grid))

    assert check(own) == ()
    if name == "file":
        other = own.model_copy(update={"orbit_sha256": "0" * 64})
        with pytest.raises(InputError, match=r"a\.h5: attribute 'orbit_sha256'"):
            check(other)
        with h5py.File("a.h5", "r+") as file:
            del file["obs/tdi"].attrs["orbit_sha256"]
        assert "does not say which orbit file" in check(own)[0]
    else:
        for field in ("orbit_lambda1", "orbit_m_init1"):
            moved = own.model_copy(update={field: getattr(own, field) + 0.1})
            with pytest.raises(InputError, match=rf"a\.h5: attribute '{field}'"):
                check(moved)
    with pytest.raises(InputError, match="attribute 'orbit_L'"):
        check(own.model_copy(update={"arm_length": own.arm_length * 1.001}))
    with pytest.raises(InputError, match="attribute 'orbit'"):
        check(ObservationSettings(t0=own.t0, orbit="equal_arm" if name != "another phase"
              else "keplerian"))  # fmt: skip


def test_an_orbit_file_must_reach_beyond_the_observation(tmp_path: Path) -> None:
    path = tmp_path / "orbits.h5"
    settings = small(orbit="file", orbit_file=str(path))
    needed = r"orbits\.h5: covers .* needs the orbits from -122880 to 1.10592e\+06 s, an eighth"
    for begin, days in ((-1e5, 100), (-2e5, 14), (0.0, 100)):
        orbit_file(path, begin, days)
        with pytest.raises(InputError, match=needed):
            simulate_observation(tmp_path / "x.h5", settings, 1, one_source())
    orbit_file(path, -122_880.0, 15)
    simulate_observation(tmp_path / "x.h5", settings, 1, one_source())


def density(path: Path, low: float, high: float) -> np.ndarray:
    """The mean one-sided density of A, E, T in the file between two frequencies."""
    with h5py.File(path) as file:
        tdi = file["obs/tdi"][:, 0]
    aet = bands.xyz_to_aet(np.stack([tdi[c] for c in "XYZ"]))
    f, psd = scipy.signal.welch(aet, 1.0 / 60.0, nperseg=1024, window="hann")
    return psd[:, (f > low) & (f < high)].mean(axis=1)


def test_a_noise_table_is_the_noise(tmp_path: Path) -> None:
    """White tables in TDI 2; outside its range a table goes on as at its ends."""
    table = tmp_path / "noise.txt"
    np.savetxt(table, [[1e-3, 4e-42, 2e-42, 1e-42], [4e-3, 4e-42, 2e-42, 1e-42]])
    settings = small(noise="table", noise_file=str(table), tdi_generation="2.0")
    simulate_observation(tmp_path / "noise.h5", settings, 1)
    for low, high in ((2e-4, 9e-4), (1e-3, 4e-3), (5e-3, 8e-3)):
        measured = density(tmp_path / "noise.h5", low, high)
        relative = 4.5 / np.sqrt((high - low) * T)
        np.testing.assert_allclose(measured, [4e-42, 2e-42, 1e-42], rtol=relative)
    # what an SNR needs must be in it, and that is found out first
    with pytest.raises(InputError, match=r"noise\.txt: column 1: covers 0\.001 to 0\.004 Hz"):
        simulate_observation(tmp_path / "no.h5", settings, 1, galaxy=GalaxySettings())
    with pytest.raises(InputError, match=r"noise\.txt: column 1"):
        simulate_observation(tmp_path / "no.h5", settings, 1, one_source(f0=5e-3))
    assert not (tmp_path / "no.h5").exists()
    # SNR against the table, here with the confusion left out: 4 / T sum |h|^2 / S
    quiet = settings.model_copy(update={"foreground": False})
    simulate_observation(tmp_path / "one.h5", quiet, 1, one_source(f0=2e-3))
    truth = read_truth(tmp_path / "one.h5")
    assert truth is not None
    h, _ = jaxgb_response(truth.sources, quiet, 512)
    expected = np.sqrt(4.0 / T / (1 - 0.625 * 0.05) * (np.abs(h) ** 2).sum() / 4e-42)
    assert truth.snr[0] == pytest.approx(expected, rel=1e-2)


def test_long_noise_tables_fit_into_the_file(tmp_path: Path) -> None:
    f = np.geomspace(1e-5, 8.4e-3, 3000)
    np.savetxt(tmp_path / "t.txt", np.column_stack([f, *instrument_psd(f)]))
    settings = small(noise="table", noise_file=str(tmp_path / "t.txt"))
    simulate_observation(tmp_path / "a.h5", settings, 1)
    with h5py.File(tmp_path / "a.h5") as file:
        stored = ObservationSettings.model_validate_json(file.attrs["settings"])
    assert stored.noise_table is not None
    np.testing.assert_array_equal(np.array(stored.noise_table)[:, 0], np.loadtxt(
        tmp_path / "t.txt")[:, 0])  # fmt: skip
    # the same as the model: same seed, same random numbers
    simulate_observation(tmp_path / "b.h5", SMALL, 1)
    a, b = (read_observation(tmp_path / f"{n}.h5").tdi for n in "ab")
    assert np.linalg.norm(a - b) < 1e-3 * np.linalg.norm(b)


def test_the_noise_model_and_the_generation(tmp_path: Path) -> None:
    for n, settings in enumerate((small(noise="scirdv1_10pm"), small(tdi_generation="2.0"))):
        path = tmp_path / f"{n}.h5"
        simulate_observation(path, settings, 3)
        f = np.linspace(2.5e-3, 3.5e-3, 100)
        psd = instrument_psd(f, model=settings.noise, tdi_generation=settings.tdi_generation)
        np.testing.assert_allclose(
            density(path, 2.5e-3, 3.5e-3), psd.mean(axis=1), rtol=5.5 / np.sqrt(1e-3 * T)
        )


def test_snr_does_not_depend_on_the_generation() -> None:
    sources = random_sources(np.random.default_rng(4), 20, 1e-3, 7e-3, T)
    one, two = (source_snr(sources, small(tdi_generation=g)) for g in ("1.5", "2.0"))
    np.testing.assert_allclose(one, two, rtol=1e-9)


def test_without_foreground(tmp_path: Path) -> None:
    settings = small(foreground=False)
    summary = simulate_observation(
        tmp_path / "a.h5", settings, 1, one_source(f0=1.5e-3), galaxy=GalaxySettings()
    )
    assert summary.binaries == 0
    truth = read_truth(tmp_path / "a.h5")
    assert truth is not None
    inst, conf = instrument_psd(1.5e-3)[0], confusion_psd(1.5e-3, duration=T)
    ratio = truth.snr / source_snr(truth.sources, SMALL)
    np.testing.assert_allclose(ratio, np.sqrt((inst + conf) / inst), rtol=2e-2)
    hour = small(dt=1.0)
    with pytest.raises(InputError, match="covers 1 day to 10 years"):
        simulate_observation(tmp_path / "b.h5", hour, 1)


def test_the_population_is_the_presets(tmp_path: Path) -> None:
    galaxy = GalaxySettings(fmin=6e-3, truth_snr=0.0)
    dense = PopulationSettings(density=5.3e7, disc_fraction=0.0)
    numbers = [
        simulate_observation(
            tmp_path / f"{n}.h5", SMALL, 5, galaxy=galaxy, population=p, noise=False
        ).binaries
        for n, p in enumerate((PopulationSettings(), dense, PopulationSettings(density=0.0)))
    ]
    assert numbers[2] == 0
    assert abs(numbers[1] - 10 * numbers[0]) < 4.5 * np.sqrt(110 * numbers[0])
    truth = read_truth(tmp_path / "1.h5")
    assert truth is not None
    # a bulge alone: all near the Galactic centre, at 266.4, -28.9 deg; 0.5 of 8.1 kpc
    ra, dec = truth.sources[:, 3], truth.sources[:, 4]
    c = np.radians([266.4, -28.94])
    cosine = np.sin(dec) * np.sin(c[1]) + np.cos(dec) * np.cos(c[1]) * np.cos(ra - c[0])
    assert np.median(np.arccos(cosine)) == pytest.approx(0.5 * 1.18 / 8.1, rel=0.1)


GAPS = GapSettings(planned_interval=3.0, planned_jitter=0.2, random_rate=60.0)


@pytest.mark.parametrize("compact", [False, True])
def test_gaps_are_missing_samples(tmp_path: Path, compact: bool) -> None:
    settings = small(gaps=GAPS)
    simulate_observation(tmp_path / "gaps.h5", settings, 9, compact=compact)
    simulate_observation(tmp_path / "whole.h5", SMALL, 9, compact=compact)
    with h5py.File(tmp_path / "gaps.h5") as file, h5py.File(tmp_path / "whole.h5") as whole:
        spans, rows, complete = file["obs/gaps"][:], file["obs/tdi"][:, 0], whole["obs/tdi"][:, 0]
        assert "obs/gaps" not in whole
    np.testing.assert_array_equal(spans, draw_gaps(np.random.default_rng([9, 0, 5]), GAPS, T))
    assert len(spans) >= 4
    missing = np.zeros(SAMPLES, dtype=bool)
    for begin, end in spans:
        missing[int(np.ceil(begin / 60)) : int(np.floor(end / 60)) + 1] = True
    for name in "XYZ":
        np.testing.assert_array_equal(np.isnan(rows[name]), missing)
        np.testing.assert_array_equal(rows[name][~missing], complete[name][~missing])
    assert np.isfinite(rows["t"]).all()
    valid = read_observation(tmp_path / "gaps.h5").valid
    assert valid is not None
    np.testing.assert_array_equal(valid, ~missing)
