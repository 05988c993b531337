"""simulate.mojito_file: files in the Mojito layout, read by the mojito package."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.signal
from mojito import MojitoL1File

from slotflow.bands import xyz_to_aet
from slotflow.cli.main import run
from slotflow.config import GapSettings, ObservationSettings
from slotflow.conventions import LDC_COLUMNS, from_ldc, to_gbgpu
from slotflow.errors import InputError, OutputExistsError
from slotflow.noise import instrument_psd
from slotflow.readers import read_truth
from slotflow.response import C
from slotflow.simulate.mojito_file import LASER_FREQUENCY, LINKS, to_mojito
from slotflow.simulate.observation import GalaxySettings, simulate_observation
from slotflow.simulate.orbits import orbits
from slotflow.simulate.waveforms import jaxgb_response
from tests.synthetic import random_sources

SAMPLES = 2**14
EPOCH = 97729089.327664  # s, of the Mojito files
BASE = {"samples": SAMPLES, "t0": EPOCH}
SETTINGS = ObservationSettings(**BASE, tdi_generation="2.0")
T = SETTINGS.duration
GAPS = GapSettings(planned_interval=3.0, planned_hours=5.0)


def _sources(number: int, seed: int = 1) -> np.ndarray:
    sources = random_sources(np.random.default_rng(seed), number, 1e-3, 4e-3, T)
    sources[:, 2] = 1e-21
    return sources


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One observation, with gaps, in both layouts."""
    folder = tmp_path_factory.mktemp("mojito")
    settings = SETTINGS.model_copy(update={"gaps": GAPS})
    for layout in ("mojito", "sangria"):
        simulate_observation(
            folder / f"{layout}.h5", settings, 3, _sources(3), ["a", "b", "HM Cnc"],
            galaxy=GalaxySettings(fmin=5e-3), layout=layout,
        )  # fmt: skip
    return folder / "mojito.h5", folder / "sangria.h5"


def test_the_series_by_the_packages_reader(pair: tuple[Path, Path]) -> None:
    with h5py.File(pair[1]) as file:
        ours, spans = file["obs/tdi"][:, 0], file["obs/gaps"][:]
    missing = np.isnan(ours["X"])
    assert 0.05 < missing.mean() < 0.15
    with MojitoL1File(pair[0]) as file:
        assert file.is_complete
        file.check_consistent()
        tdi = file.tdis
        assert file.laser_frequency == LASER_FREQUENCY
        np.testing.assert_array_equal(tdi.time_sampling.t(), ours["t"])
        np.testing.assert_array_equal(tdi.xyz_flags[:], missing)
        series = np.stack([ours[name] for name in "XYZ"])[:, ~missing]
        scale = np.abs(series).max()
        seen = tdi.xyz_doppler[:].T[:, ~missing]
        np.testing.assert_allclose(seen, series, rtol=1e-12, atol=1e-13 * scale)
        np.testing.assert_allclose(
            tdi.aet_doppler[:].T[:, ~missing], xyz_to_aet(series), rtol=1e-12, atol=1e-12 * scale
        )
        assert np.isnan(tdi.x2[:][missing]).all()
        assert np.isnan(tdi.a2[:][missing]).all()
        # single links are not simulated, and cannot be mistaken for data
        assert tdi.eta_flags[:].all()
        assert np.isnan(tdi.eta_doppler[:]).all()
        np.testing.assert_array_equal(file.files[0]["gaps"][:], spans)


@pytest.mark.parametrize("orbit", ["equal_arm", "keplerian"])
def test_a_source_is_jaxgbs_response(tmp_path: Path, orbit: str) -> None:
    settings = ObservationSettings(
        samples=4 * SAMPLES, t0=EPOCH, orbit=orbit, orbit_m_init1=0.4
    )  # 45 days
    source = _sources(1, 4)
    simulate_observation(tmp_path / "one.h5", settings, 1, source, noise=False, layout="mojito")
    with MojitoL1File(tmp_path / "one.h5") as file:
        aet = file.tdis.aet_doppler[:].T
    window = scipy.signal.get_window(("tukey", settings.tukey), settings.samples)
    spectrum = settings.dt * np.fft.rfft(window * aet)
    second = settings.model_copy(update={"tdi_generation": "2.0"})
    expected, first = jaxgb_response(source, second, 1024)
    for channel in (0, 1):
        seen = spectrum[channel, first[0] : first[0] + 1024]
        error = np.linalg.norm(seen - expected[0, channel])
        assert error < 5e-4 * np.linalg.norm(expected[0, channel])


def test_orbits_and_light_travel_times(pair: tuple[Path, Path]) -> None:
    orbit = orbits(SETTINGS)
    with MojitoL1File(pair[0]) as file:
        times = file.orbits.time_sampling.t()
        assert times[0] == EPOCH
        assert times[-1] == pytest.approx(EPOCH + T, abs=1e-6)
        x = file.orbits.positions[:]
        v = file.orbits.velocities[:]
        ltt, rate = file.ltts.ltts[:], file.ltts.ltt_derivatives[:]
        assert file.ltts.time_sampling == file.orbits.time_sampling
    np.testing.assert_allclose(x, orbit.compute_position(times, [1, 2, 3]), rtol=1e-14)
    step = times[1] - times[0]
    # central differences, (w dt)^2 / 6 of the speed; of a year's 30 km/s
    np.testing.assert_allclose((x[2:] - x[:-2]) / (2 * step), v[1:-1], atol=1e-5 * 3e4)
    for column, link in enumerate(LINKS):
        receiver, emitter = link // 10 - 1, link % 10 - 1
        distance = np.linalg.norm(x[:, receiver] - x[:, emitter], axis=1)
        # the emitter moves by v L / c while the light is under way: 1e-4
        np.testing.assert_allclose(ltt[:, column], distance / C, rtol=2e-4)
        moved = x[:, emitter] - v[:, emitter] * ltt[:, [column]]
        precise = np.linalg.norm(x[:, receiver] - moved, axis=1) / C
        np.testing.assert_allclose(ltt[:, column], precise, rtol=1e-7)
    difference = (ltt[2:] - ltt[:-2]) / (2 * step)
    np.testing.assert_allclose(difference, rate[1:-1], atol=2e-2 * np.abs(rate).max())


def test_noise_estimates_are_the_noise(tmp_path: Path) -> None:
    simulate_observation(tmp_path / "noise.h5", SETTINGS, 2, layout="mojito")
    with MojitoL1File(tmp_path / "noise.h5") as file:
        f = file.noise_estimates.freq_sampling.f()
        aet, xyz = file.noise_estimates.aet[:][0], file.noise_estimates.xyz[:][0]
        series = np.stack([file.tdis.x2[:], file.tdis.y2[:]])
    diagonal = np.einsum("nii->in", aet)
    expected = LASER_FREQUENCY**2 * instrument_psd(f, tdi_generation="2.0")
    np.testing.assert_allclose(diagonal, expected, rtol=1e-12)
    assert np.abs(aet - np.einsum("in,ij->nij", diagonal, np.eye(3))).max() == 0.0
    # against the series themselves, X with X and with Y
    g, power = scipy.signal.welch(series, 1.0 / 60.0, nperseg=1024)
    _, cross = scipy.signal.csd(*series, 1.0 / 60.0, nperseg=1024)
    part = (g > 2.5e-3) & (g < 4.5e-3)
    model = np.stack([np.interp(g[part], f, xyz[:, 0, k].real) for k in (0, 1)])
    tolerance = 5.5 / np.sqrt(2e-3 * T)
    assert power[:, part].mean() == pytest.approx(model[0].mean(), rel=tolerance)
    assert cross[part].real.mean() == pytest.approx(
        model[1].mean(), abs=tolerance * model[0].mean()
    )
    assert model[1].mean() < -0.3 * model[0].mean()

    simulate_observation(
        tmp_path / "quiet.h5", SETTINGS, 2, _sources(1), noise=False, layout="mojito"
    )
    with MojitoL1File(tmp_path / "quiet.h5") as file:
        assert not file.noise_estimates.aet[:].any()


def test_the_sources_in_three_conventions(pair: tuple[Path, Path]) -> None:
    truth = read_truth(pair[0])
    other = read_truth(pair[1])
    assert truth is not None
    assert other is not None
    np.testing.assert_array_equal(truth.sources, other.sources)
    assert truth.names[:3] == ("a", "b", "HM Cnc")
    assert len(truth.names) > 10
    with h5py.File(pair[0]) as file:
        group = {name: file["Binaries"][name][:] for name in file["Binaries"]}
        members = file["sky/dgb/cat"][:, 0]
        assert file["sky/vgb/cat"].shape == (3, 1)
        assert "TrueAnomaly" in file["Binaries"].attrs["conventions"]
    assert group.pop("Name")[2] == b"HM Cnc"
    assert {len(values) for values in group.values()} == {len(truth.names)}
    s = truth.sources
    np.testing.assert_array_equal(group["GW22FrequencySSBFrame"], s[:, 0])
    np.testing.assert_array_equal(group["GW22FrequencyDerivativeSourceFrame"], s[:, 1])
    np.testing.assert_array_equal(group["Amplitude"], s[:, 2])
    np.testing.assert_array_equal(group["RightAscension"], s[:, 3])
    np.testing.assert_array_equal(group["Declination"], s[:, 4])
    np.testing.assert_array_equal(group["PolarisationAngle"], s[:, 5])
    np.testing.assert_array_equal(group["InclinationAngle"], s[:, 6])
    assert (group["TimeReferenceSSBFrame"] == EPOCH).all()
    # public global fits give GBGPU +TrueAnomaly for its phi0, whose sign is not ours
    np.testing.assert_allclose(
        np.exp(1j * group["TrueAnomaly"]), np.exp(1j * to_gbgpu(s)[:, 4]), atol=1e-12
    )
    back = from_ldc({name: members[name] for name in LDC_COLUMNS})
    np.testing.assert_allclose(back, s[3:], rtol=1e-7)


def test_angles_are_wrapped() -> None:
    source = _sources(1)
    source[0, [3, 5, 7]] = -0.5, 3.5, -0.25
    columns = to_mojito(source, 0.0)
    assert columns["RightAscension"][0] == pytest.approx(2 * np.pi - 0.5)
    assert columns["PolarisationAngle"][0] == pytest.approx(3.5 - np.pi)
    assert columns["TrueAnomaly"][0] == pytest.approx(0.25)


def test_what_the_layout_refuses(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    first = ObservationSettings(samples=SAMPLES, tdi_generation="1.5")
    with pytest.raises(InputError, match=r"observation\.tdi_generation: '1\.5': .* '2\.0'"):
        simulate_observation(path, first, 1, layout="mojito")
    with pytest.raises(InputError, match="compact"):
        simulate_observation(path, SETTINGS, 1, layout="mojito", compact=True)
    with pytest.raises(InputError, match="layout: 'radler'"):
        simulate_observation(path, SETTINGS, 1, layout="radler")  # type: ignore[arg-type]
    path.write_text("mine")
    with pytest.raises(OutputExistsError, match="exists already"):
        simulate_observation(path, SETTINGS, 1, layout="mojito")
    with pytest.raises(InputError, match="cannot be written"):
        simulate_observation(path / "below.h5", SETTINGS, 1, layout="mojito")
    with pytest.raises(InputError, match="cannot be written"):
        simulate_observation(tmp_path, SETTINGS, 1, layout="mojito", force=True)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]
    simulate_observation(path, SETTINGS, 1, layout="mojito", force=True)
    with MojitoL1File(path) as file:
        assert file.is_complete


def test_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The layout's own TDI generation, unless the settings ask for another."""
    preset, path = tmp_path / "p.yaml", tmp_path / "m.h5"
    arguments = ["simulate", "--preset", str(preset), "--observation", str(path), "--layout"]
    preset.write_text(f"observation: {{samples: {SAMPLES}, tdi_generation: '1.5'}}\n")
    assert run([*arguments, "mojito"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "tdi_generation: '1.5': the Mojito layout holds TDI 2: set it to '2.0'" in err
    preset.write_text(f"observation: {{samples: {SAMPLES}, foreground: false}}\n")
    assert run([*arguments, "mojito"]) == 0
    with MojitoL1File(path) as file:
        assert file.is_complete
    assert run([*arguments, "mojito"]) == 2
    assert "--force" in capsys.readouterr().err
    for extra in (["mojito", "--compact"], ["radler"]):
        assert run([*arguments, *extra, "--force"]) == 2
    assert run(["simulate", "--layout", "mojito", "-o", str(tmp_path / "set")]) == 2
    assert not (tmp_path / "set").exists()
