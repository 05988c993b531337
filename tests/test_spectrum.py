"""slotflow.spectrum: the same series in every layout and at every step, and gaps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slotflow.channels import aet_to_xyz, xyz_to_aet
from slotflow.config import GapSettings
from slotflow.errors import InputError
from slotflow.gaps import gap_mask, gap_spans, series_mask
from slotflow.noise import C, window_power, window_samples
from slotflow.readers import Observation, read_observation
from slotflow.spectrum import Spectrum, spectrum
from tests.layouts import (
    noise,
    white,
    write_mojito,
    write_radler,
    write_sangria,
    write_spritz,
    xyz2,
)

N, DT = 65_536, 60.0
T = N * DT
TUKEY = 0.05
HOUR = 3600.0


def _observation(xyz: np.ndarray, dt: float = DT, valid: np.ndarray | None = None) -> Observation:
    return Observation(
        np.asarray(xyz, dtype=np.float64), dt, 0.0, "1.5", Path("input.h5"), valid=valid
    )


def _gaps(samples: int, dt: float, number: int, length: float) -> np.ndarray:
    valid = np.ones(samples, dtype=bool)
    for begin in np.linspace(0.03, 0.9, number) * samples * dt:
        valid[int(begin / dt) : int((begin + length) / dt)] = False
    return valid


def _gapped(xyz: np.ndarray, valid: np.ndarray) -> Observation:
    return _observation(np.where(valid, xyz, 0.0), valid=valid)


def test_one_series_in_every_layout(tmp_path: Path) -> None:
    xyz = noise(N, DT, "2.0")
    aet = dict(zip(("a2", "e2", "t2"), xyz_to_aet(xyz), strict=True))
    paths = [
        write_sangria(tmp_path / "sangria.h5", xyz, DT, tdi_generation="2.0"),
        write_spritz(tmp_path / "spritz.h5", xyz, DT, tdi_generation="2.0"),
        write_radler(tmp_path / "radler.h5", xyz, DT, tdi_generation="2.0"),
        write_mojito(tmp_path / "mojito.h5", xyz2(xyz), DT),
        write_mojito(tmp_path / "aet.h5", aet, DT),
    ]
    results = [spectrum(read_observation(path), T, TUKEY, 4e-3) for path in paths]
    for result in results[1:]:
        assert _distance(result, results[0]) < 1e-12
        assert result.notes == results[0].notes
        assert result.window_power == window_power(TUKEY)


def test_gaps_in_every_layout(tmp_path: Path) -> None:
    xyz, valid = noise(N, DT, "2.0"), _gaps(N, DT, 4, 7 * HOUR)
    holed = np.where(valid, xyz, np.nan)
    paths = [
        write_spritz(tmp_path / "spritz.h5", holed, DT, tdi_generation="2.0"),
        write_radler(tmp_path / "radler.h5", holed, DT, tdi_generation="2.0"),
        write_mojito(tmp_path / "mojito.h5", xyz2(xyz), DT, flags=~valid),
    ]
    results = [spectrum(read_observation(path), T, TUKEY, 4e-3) for path in paths]
    for result in results[1:]:
        assert _distance(result, results[0]) < 1e-12
        assert result.window_power == results[0].window_power
        assert result.gap_fraction == results[0].gap_fraction == pytest.approx(1 - valid.mean())
        assert result.notes == results[0].notes
    assert "4 gaps, 2.56% of the data: masked, with a taper of 6 h" in results[0].notes[1]


def _distance(one: Spectrum, other: Spectrum) -> float:
    return float(np.linalg.norm(one.data - other.data) / np.linalg.norm(other.data))


@pytest.mark.parametrize("dt", [0.25, 2.5, 5.0, 15.0, 30.0])
def test_every_step_gives_the_same_bins(dt: float) -> None:
    """Sinusoids, sampled at dt and at 60 s; a smooth window, so that little is aliased."""
    duration = 4096 * 60.0
    rng = np.random.default_rng(2)
    frequency, phase = rng.uniform(1e-3, 3e-3, 5), rng.uniform(0, 6.28, (3, 5, 1))

    def waves(step: float) -> np.ndarray:
        times = np.arange(round(duration / step)) * step
        return np.sin(2 * np.pi * frequency[:, None] * times + phase).sum(axis=1)

    coarse = spectrum(_observation(waves(60.0)), duration, 0.5, 4e-3)
    fine = spectrum(_observation(waves(dt), dt), duration, 0.5, 4e-3)
    assert fine.data.shape == coarse.data.shape
    assert _distance(fine, coarse) < 1e-5


def test_gaps_are_masked_as_in_simulations() -> None:
    """The mask of the gaps' spans, as training bands are cut by it, times the window."""
    spans = np.array([[0.0, 5.0], [200.0, 207.0], [500.2, 530.7], [538.0, 540.0]]) * HOUR
    times = DT * np.arange(N)
    valid = gap_mask(times, spans, 0.0) > 0.0
    xyz = white(N)
    for gaps in (None, GapSettings(taper_hours=2.0)):
        taper = 6.0 if gaps is None else gaps.taper_hours
        result = spectrum(_gapped(xyz, valid), T, TUKEY, gaps=gaps)
        window = window_samples(TUKEY, N) * gap_mask(times, spans, taper * HOUR)
        expected = xyz_to_aet(DT * np.fft.rfft(xyz * window))
        # a gap is seen to within a sample, a 360th of the taper
        assert _distance(result, Spectrum(expected, T, 1.0)) < 2e-3
        assert result.window_power == pytest.approx(np.mean(window**2), rel=1e-3)
        assert result.gap_fraction == pytest.approx(1.0 - valid.mean())
        assert f"4 gaps, {100 * (1 - valid.mean()):.3g}% of the data" in result.notes[0]


def test_spans_of_samples() -> None:
    valid = np.array([False, True, True, False, False, True, False])
    np.testing.assert_array_equal(gap_spans(valid, 2.0), [[0, 0], [6, 8], [12, 12]])
    assert gap_spans(np.ones(4, dtype=bool), 2.0).shape == (0, 2)
    np.testing.assert_array_equal(series_mask(valid, 2.0, 0.0), valid)
    half = series_mask(np.array([True] * 5 + [False]), 1.0, 4.0)
    np.testing.assert_allclose(half, 0.5 - 0.5 * np.cos(np.pi / 4 * np.array([4, 4, 3, 2, 1, 0])))


@pytest.mark.parametrize("number", [0, 20])
def test_the_power_of_the_window(number: int) -> None:
    """White noise of density S: E|n|^2 = S T / 2 times the window's power."""
    density, samples = 3e-42, 1 << 19
    xyz = np.random.default_rng(5).standard_normal((3, samples)) * np.sqrt(density / (2 * DT))
    valid = _gaps(samples, DT, number, 36 * HOUR)
    data = _gapped(xyz, valid) if number else _observation(xyz)
    result = spectrum(data, samples * DT, TUKEY)
    measured = np.mean(np.abs(result.data) ** 2) / (0.5 * density * samples * DT)
    # 7.9e5 independent bins: 0.12%, at 4 sigma
    assert result.window_power == pytest.approx(measured, rel=5e-3)
    mean = np.mean(window_samples(TUKEY, samples) ** 2)
    if number:
        assert result.window_power < 0.9 * mean
        assert result.gap_fraction == pytest.approx(number * 36 * HOUR / (samples * DT), rel=1e-3)
    else:
        assert result.window_power == pytest.approx(mean, rel=1e-6)
        assert result.gap_fraction == 0.0


def test_the_taper_keeps_a_loud_line_from_the_band() -> None:
    times = DT * np.arange(N)
    xyz = aet_to_xyz(np.sin(2 * np.pi * 5e-3 * times)[None] * np.array([[1.0], [1.0], [0.0]]))
    valid = _gaps(N, DT, 5, 7 * HOUR)
    leak = []
    for hours in (0.0, 6.0):
        result = spectrum(_gapped(xyz, valid), T, TUKEY, gaps=GapSettings(taper_hours=hours))
        band = slice(round(1e-3 * T), round(2e-3 * T))
        leak.append(np.abs(result.data[:2, band]).max())
    assert leak[1] < 1e-3 * leak[0]


def test_gaps_outside_what_is_used() -> None:
    valid = np.ones(N + 5000, dtype=bool)
    valid[-3000:] = False
    xyz = white(N + 5000)
    whole = spectrum(_observation(xyz[:, :N]), T, TUKEY)
    result = spectrum(_gapped(xyz, valid), T, TUKEY)
    np.testing.assert_array_equal(result.data, whole.data)
    assert result.gap_fraction == 0.0
    assert result.notes == ("the last 300000 s are not used: the model was trained on 3932160 s",)
    valid[:40_000] = False
    with pytest.raises(InputError, match=r"61\.0% of the 3932160 s that are used lie in gaps"):
        spectrum(_gapped(xyz, valid), T, TUKEY)


def test_tdi2_of_another_arm_length() -> None:
    """X2(t) = X(t) - X(t - 4 L / c): the arm is the file's own."""
    arm, k = 2.9e9, 1000
    times, phase = DT * np.arange(N), np.array([[0.1], [1.0], [2.0]])

    def wave(t: np.ndarray) -> np.ndarray:
        return np.sin(2 * np.pi * k / T * t + phase)

    second = _observation(wave(times) - wave(times - 4 * arm / C))
    second = replace(second, generation="2.0", orbit_parameters={"L": arm})
    expected = spectrum(_observation(wave(times)), T, TUKEY).data[:, k]
    np.testing.assert_allclose(spectrum(second, T, TUKEY).data[:, k], expected, rtol=1e-6)


def test_notes_of_the_file_are_kept() -> None:
    data = replace(_observation(white(N)), notes=("what the reader saw",))
    assert spectrum(data, T, TUKEY).notes == ("what the reader saw",)
