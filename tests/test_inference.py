"""slotflow.inference: samples within bounds whatever the network says, rows that are their own."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from slotflow.bands import Spectrum, spectrum, tile_grid
from slotflow.checkpoint import Model
from slotflow.inference import BLOCK, BandReader
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, PHI0, PSI, RA
from slotflow.results import BandOutcome, PosteriorSettings
from slotflow.whitening import Whitening
from tests.chain import example_observation, untrained_model

T = 524_288 * 60.0
SETTINGS = PosteriorSettings(1.9e-3, 2.0e-3, 200, 0, "data", 0.5)


@pytest.fixture(scope="module")
def year() -> Spectrum:
    model = untrained_model()
    return spectrum(example_observation(), T, model.preset.observation.tukey, 2.2e-3)


def _reader(year: Spectrum, model: Model, settings: PosteriorSettings = SETTINGS) -> BandReader:
    whitening = Whitening(year, model.preset, "data", example_observation().path)
    return BandReader(model, whitening, settings, False)


def _wild(strength: float) -> Model:
    """A network whose flow's parameters are large random numbers."""
    model = untrained_model()
    network = deepcopy(model.network)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for part in (network.flow, network.psi):
            for parameter in part.parameters():
                parameter.add_(strength * torch.randn(parameter.shape, generator=generator))
    return replace(model, network=network)


@pytest.mark.parametrize("strength", [0.3, 3.0])
def test_samples_are_inside_the_prior_whatever_the_network_says(
    year: Spectrum, strength: float
) -> None:
    model = _wild(strength)
    grid = tile_grid(model.preset.prior, T)
    many = replace(SETTINGS, samples=3000)
    reader = _reader(year, model, many)
    spread = 0.0
    for tile in grid[150:152]:
        one = reader._search(tile)
        ((_, row, reading),) = list(reader._readings([one]))
        for slot in range(5):
            source = reader._sample(one, reading, row, slot, 1.0)
            s = source.samples
            assert np.isfinite(s).all()
            assert np.isfinite(source.log_q).all()
            place = s[:, F0] * T - tile.first_bin  # narrow windows: the central 96 bins
            inside = (place >= 80 - 1e-9) & (place <= 176 + 1e-9)
            # a slot on a neighbour's source stays there, for the neighbour to report
            assert inside.all() or not 80 <= np.median(place) <= 176
            assert ((place > 0) & (place < 256)).all()
            fdot = s[:, FDOT] * T**2
            assert ((fdot >= -0.1) & (fdot <= 0.3)).all()
            assert (s[:, AMPLITUDE] > 0.0).all()
            assert ((s[:, RA] >= 0) & (s[:, RA] < 2 * np.pi)).all()
            assert (np.abs(s[:, DEC]) <= np.pi / 2).all()
            assert ((s[:, PSI] >= 0) & (s[:, PSI] < np.pi)).all()
            assert ((s[:, IOTA] >= 0) & (s[:, IOTA] <= np.pi)).all()
            assert ((s[:, PHI0] >= 0) & (s[:, PHI0] < 2 * np.pi)).all()
            spread = max(spread, float(np.ptp(np.log(s[:, AMPLITUDE]))))
    # draws did reach for what is out of bounds: e^1350 without one
    assert 10.0 < spread < 2 * np.log(1e4) + 2 * np.log(4.0)


def test_a_narrower_prior_of_fdot_is_kept_to(year: Spectrum) -> None:
    """The coordinates reach from -0.1 to 0.3; the draws of a prior of 0 to 0.1 do not."""
    model = untrained_model()
    prior = model.preset.prior.model_copy(update={"fdot_t2_min": 0.0, "fdot_t2_max": 0.1})
    narrow = replace(model, preset=model.preset.model_copy(update={"prior": prior}))
    tile = tile_grid(prior, T)[150]
    wide, held = (next(_reader(year, m)([tile])).sources for m in (model, narrow))
    assert len(wide) == len(held) > 0
    for a, b in zip(wide, held, strict=True):
        before, after = a.samples[:, FDOT] * T**2, b.samples[:, FDOT] * T**2
        inside = (before >= 0.0) & (before <= 0.1)
        assert 0.1 < inside.mean() < 0.9
        assert ((after >= 0.0) & (after <= 0.1)).all()
        np.testing.assert_allclose(after[inside], before[inside], rtol=1e-9, atol=1e-12)
        # more of the draws in less space: denser by what was outside
        assert (b.log_q[inside] > a.log_q[inside] - 1e-3).all()


def _numbers(outcome: BandOutcome) -> list[np.ndarray]:
    return [outcome.q_k, *(s.samples for s in outcome.sources), *(s.log_q for s in outcome.sources)]


def test_a_band_is_read_the_same_whatever_else_is_read(year: Spectrum) -> None:
    reader = _reader(year, untrained_model())
    grid = tile_grid(untrained_model().preset.prior, T)
    first = (150 // BLOCK + 1) * BLOCK - 2  # the last two of a block and the first of the next
    together = list(reader(grid[first : first + 3]))
    for tile, outcome in zip(grid[first : first + 3], together, strict=True):
        (alone,) = list(reader([tile]))
        assert outcome.record == alone.record
        for a, b in zip(_numbers(outcome), _numbers(alone), strict=True):
            np.testing.assert_array_equal(a, b)
    # in any order, and again
    backwards = list(reader([grid[first + 1], grid[first], grid[first]]))
    for outcome, expected in zip(backwards, (together[1], together[0], together[0]), strict=True):
        assert outcome.record == expected.record
        for a, b in zip(_numbers(outcome), _numbers(expected), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_repeated_source_counts_once(year: Spectrum, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that repeats another's signal is no source, nor part of q(K)."""
    tile = tile_grid(untrained_model().preset.prior, T)[150]
    (before,) = list(_reader(year, untrained_model())([tile]))
    monkeypatch.setattr("slotflow.inference.distinct_in_band", lambda sources, _: sources[1:])
    (after,) = list(_reader(year, untrained_model())([tile]))
    assert before.record.expected - after.record.expected == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(after.q_k[:-1], before.q_k[1:], atol=1e-6)


def test_only_sources_near_the_tile_are_kept(year: Spectrum) -> None:
    reader = _reader(year, untrained_model())
    for outcome in reader(tile_grid(untrained_model().preset.prior, T)[150:153]):
        for source in outcome.sources:
            assert outcome.record.low - 1 / T <= source.f0 < outcome.record.high + 1 / T
            assert source.first_bin == outcome.record.first_bin
