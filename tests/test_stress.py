"""benchmarks/stress.py: what is done to a band is what the stress says, and so are its figures."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from slotflow.config import Preset, load_preset
from slotflow.merging import Comparison
from slotflow.parameters import F0, other_image
from slotflow.response import ResponseGrid, tdi2_factor
from slotflow.results import BandOutcome, SourcePosterior, TileRecord
from tests.chain import untrained_model

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def preset() -> Preset:
    settings = load_preset("shipped")
    quiet = settings.observation.model_copy(update={"foreground": False})
    return settings.model_copy(update={"observation": quiet})


@pytest.fixture(scope="module")
def bands() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("stressed_bands")


@pytest.fixture(scope="module")
def stress() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("stress")


def base(bands: ModuleType, maker: object, index: int = 0) -> object:
    (band,) = bands.simulate_group(maker.preset, bands.SEED, [index])  # type: ignore[attr-defined]
    return maker.base(band, index)  # type: ignore[attr-defined]


def test_added_sources_have_their_snr(bands: ModuleType, preset: Preset) -> None:
    """SNR^2 = 2 sum |h|^2 of whitened A and E, here of sources in the middle of the band."""
    maker = bands.Maker(preset)
    plain = base(bands, maker)
    rng = np.random.default_rng(0)
    for snr in (20.0, 1000.0):
        sources = maker.sources(rng, plain, np.array([128.3]))
        more = maker.with_sources(plain, sources, np.array([snr]))
        added = more.signal - plain.signal
        assert np.sqrt(2.0 * (np.abs(added) ** 2).sum()) == pytest.approx(snr, rel=0.01)
        assert (added[2] == 0.0).all()
        assert more.snr[-1] == snr
        assert len(more.truths) == len(plain.truths) + 1
        place = more.truths[-1, F0] * preset.observation.duration - plain.first_bin
        assert place == pytest.approx(128.3)
    beyond = maker.with_sources(
        plain, maker.sources(rng, plain, np.array([-30.0])), np.array([1000.0]), target=False
    )
    assert beyond.snr[-1] == 0.0
    leaked = np.sqrt(2.0 * (np.abs(beyond.signal - plain.signal) ** 2).sum())
    assert 0.1 < leaked < 500.0


def test_each_stress_is_what_it_says(bands: ModuleType, preset: Preset) -> None:
    maker, rng = bands.Maker(preset), np.random.default_rng(1)
    one = base(bands, maker, 1)
    plain = bands.plain(maker, one, rng)
    twice = bands.noise_times(2.0)(maker, one, rng)
    np.testing.assert_allclose(twice.data - plain.data, one.noise)
    np.testing.assert_allclose(twice.snr, one.snr / 2.0)
    glitch = bands.glitch(50.0)(maker, one, rng).data - plain.data
    assert np.sqrt(2.0 * (np.abs(glitch) ** 2).sum()) == pytest.approx(50.0)
    series = np.abs(np.fft.ifft(glitch[:2], axis=1)) ** 2  # nearly all in a sample or two
    assert np.sort(series.sum(axis=0))[-2:].sum() > 0.7 * series.sum()
    tilted = bands.tilted(maker, one, rng).data - one.signal
    ratio = np.abs(tilted[0]) / np.abs(one.noise[0])
    power = max(ratio[-1] / ratio[0], ratio[0] / ratio[-1]) ** 2
    assert power == pytest.approx(4.0, rel=0.02)
    f = (one.first_bin + np.arange(256)) / preset.observation.duration
    there = bands.taken_for("2.0")(maker, one, rng).data
    np.testing.assert_allclose(there * tdi2_factor(f, 2.5e9), plain.data)
    back = bands.taken_for("1.5")(maker, one, rng).data
    np.testing.assert_allclose(back / tdi2_factor(f, 2.5e9), plain.data)


def test_twins_and_crowds(bands: ModuleType, preset: Preset) -> None:
    maker, rng = bands.Maker(preset), np.random.default_rng(2)
    one = base(bands, maker, 2)
    twins = bands.twins(maker, one, rng)
    a, b = twins.truths[-2:]
    assert (b[F0] - a[F0]) * preset.observation.duration == pytest.approx(0.5)
    np.testing.assert_allclose(np.delete(a, [F0, 2]), np.delete(b, [F0, 2]))
    assert twins.snr[-1] == twins.snr[-2]
    assert a[2] == pytest.approx(b[2], rel=1e-2)
    many = bands.twice_as_many(maker, one, rng)
    assert (many.snr > 0.0).sum() == 2 * preset.prior.max_sources


def test_gaps_take_their_share(bands: ModuleType, preset: Preset) -> None:
    _, (one,) = bands.made(bands.Maker(preset), "gaps", 1)
    assert 0.01 < one.gap_fraction < 0.12
    assert one.gain**2 == pytest.approx(1.0 - one.gap_fraction, abs=0.08)  # tapers take more
    _, (whole,) = bands.made(bands.Maker(preset), "none", 1)
    assert whole.gain == 1.0
    assert whole.gap_fraction == 0.0


def test_figures_of_right_and_false_reports(
    stress: ModuleType, bands: ModuleType, slow_grid: ResponseGrid
) -> None:
    """A report that is the truth, one that is of nothing, and a flagged band, counted by hand."""
    model = untrained_model()
    duration, first = model.preset.observation.duration, 47_000
    source = np.array([(first + 100.0) / duration, 1e-17, 1e-22, 1.0, 0.3, 0.4, 1.0, 2.0])
    rng = np.random.default_rng(0)

    def report(place: float, probability: float) -> SourcePosterior:
        samples = np.tile(source, (100, 1))
        samples[:, 0] = (first + place) / duration + 1e-11 * rng.standard_normal(100)
        samples[::2] = other_image(samples[::2])
        samples[:, 3:5] += 1e-4 * rng.standard_normal((100, 2))
        return SourcePosterior(samples, np.zeros(100), probability, first, 0, 20.0)

    def outcome(sources: tuple[SourcePosterior, ...], score: float) -> BandOutcome:
        record = TileRecord(first, 1e-3, 2e-3, 1.0, 1.0, 2, 1.0, score, 0.1)
        return BandOutcome(record, np.ones(2), np.array([1.0]), sources, None)

    outcomes = [
        outcome((report(100.0, 0.99), report(150.0, 0.95)), 0.5),
        outcome((report(60.0, 0.95), report(70.0, 0.6)), 1.5),
    ]
    data = np.zeros((3, 256), dtype=complex)
    given = [bands.Stressed(data, source[None], np.array([20.0])) for _ in outcomes]
    found = stress.figures(outcomes, given, _Scored(model), Comparison(slow_grid))
    assert (found["bands"], found["flagged"], found["reports"]) == (2, 1, 4)
    assert found["recall_snr10"] == 0.5
    assert (found["false_sure"], found["matched"]) == (2, 1)
    assert found["coverage90_by_parameter"]["f0"] == 1.0
    assert (found["silent_bands"], found["silent_false_sure"]) == (1, 1)
    assert found["score"] == 1.0
    assert len(stress.cells("x", found)) == len(stress.HEADING)


class _Scored:
    """A model that has a score."""

    def __init__(self, model: object) -> None:
        self.preset, self.outlying = model.preset, object()  # type: ignore[attr-defined]
