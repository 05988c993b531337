"""slotflow.posterior and slotflow.results: from a year of data to samples of each source."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from astropy.coordinates import SkyCoord
from hypothesis import given, settings
from hypothesis import strategies as st

from slotflow import posterior as module
from slotflow.bands import spectrum, tiles
from slotflow.calibration import Calibration
from slotflow.checkpoint import Model
from slotflow.conventions import rotate_sky
from slotflow.errors import InputError
from slotflow.inference import BandReader
from slotflow.model import TokenBatch
from slotflow.noise import standard_psd, window_power
from slotflow.parameters import AMPLITUDE, DEC, F0, PARAMETERS, PHI0, PSI, RA, fold, other_image
from slotflow.posterior import posterior
from slotflow.readers import Observation, read_truth
from slotflow.results import Result, SourcePosterior, summarise
from slotflow.resume import Partial
from slotflow.tokencache import to_local_units
from slotflow.whitening import Whitening
from tests.chain import example_observation, example_path, untrained_model

T = 524_288 * 60.0
LOW, HIGH = 1.940e-3, 1.948e-3  # three bands around AM CVn


@pytest.fixture(scope="module")
def year() -> Observation:
    return example_observation()


@pytest.fixture(scope="module")
def untrained() -> Model:
    return untrained_model()


@pytest.fixture(scope="module")
def kept(year: Observation, untrained: Model) -> Result:
    """As ``result``, with the bands."""
    return posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=400, keep_bands=True)


@pytest.fixture(scope="module")
def result(year: Observation, untrained: Model) -> Result:
    return posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=400)


def _source(f0: float, probability: float = 0.9, amplitude: float = 1e-22) -> SourcePosterior:
    rng = np.random.default_rng(1)
    samples = np.tile([f0, 1e-17, amplitude, 1.0, 0.2, 0.5, 1.0, 2.0], (500, 1))
    samples[:, F0] += 0.05 / T * rng.standard_normal(500)
    samples[:, AMPLITUDE] *= np.exp(0.1 * rng.standard_normal(500))
    return SourcePosterior(samples, np.zeros(500), probability, 0, 0, 20.0)


# ---- medians and intervals


@settings(deadline=None, max_examples=50)
@given(
    turn=st.floats(0.0, 20.0),
    width=st.floats(0.01, 0.8),
    period=st.sampled_from([np.pi, 2 * np.pi]),
)
def test_a_circular_summary_turns_with_the_circle(turn: float, width: float, period: float) -> None:
    values = width * period / 2 * np.random.default_rng(3).beta(2.0, 3.0, 801)
    here = summarise(values, period)
    there = summarise(np.mod(values + turn, period), period)
    for a, b in zip(here, there, strict=True):
        assert 0.0 <= b < period
        assert abs(np.mod(b - a - turn + period / 2, period) - period / 2) < 1e-9
    plain = summarise(values)  # nowhere near the seam: the plain quantiles
    np.testing.assert_allclose(here, plain, atol=1e-12)


def test_an_interval_through_zero() -> None:
    values = np.mod(np.random.default_rng(0).normal(0.01, 0.1, 20_000), 2 * np.pi)
    median, lower, upper = summarise(values, 2 * np.pi)
    assert median == pytest.approx(0.01, abs=0.005)
    assert lower == pytest.approx(2 * np.pi + 0.01 - 0.1645, abs=0.005)
    assert upper == pytest.approx(0.01 + 0.1645, abs=0.005)
    inside = (values >= lower) | (values <= upper)
    assert inside.mean() == pytest.approx(0.9, abs=0.001)


def test_both_images_have_one_summary() -> None:
    source = _source(1.5e-3)
    samples = source.samples + 0.01 * np.random.default_rng(2).standard_normal(source.samples.shape)
    half = np.random.default_rng(4).random(len(samples)) < 0.5
    mixed = samples.copy()
    mixed[half] = other_image(samples[half])
    for index in (PSI, PHI0):
        a = SourcePosterior(samples, source.log_q, 1.0, 0, 0, 1.0).summary
        b = SourcePosterior(mixed, source.log_q, 1.0, 0, 0, 1.0).summary
        for x, y in zip(a, b, strict=True):
            assert x[index] == pytest.approx(y[index], abs=1e-9)


# ---- the chain, with a network of random weights that samples around the components


def test_loud_true_sources_are_components_and_samples_lie_around_them(kept: Result) -> None:
    truth = read_truth(example_path())
    assert truth is not None
    f0 = truth.sources[:, F0]
    loud = f0[(truth.snr > 20) & (f0 > LOW) & (f0 < HIGH)]
    assert len(loud) >= 2
    for f in loud:
        tile = next(tile for tile in kept.tiles if tile.low <= f < tile.high)
        places = kept.views[tile.first_bin].places
        assert np.abs(places + tile.first_bin - f * T).min() < 0.2
    for source in kept.sources:
        places = kept.views[source.first_bin].places
        assert np.abs(places + source.first_bin - source.f0 * T).min() < 1.0


def test_samples_respect_bounds(result: Result, untrained: Model) -> None:
    prior = untrained.preset.prior
    for source in result.sources:
        assert source.samples.shape == (400, 8)
        assert source.samples.dtype == np.float64
        assert source.log_q.shape == (400,)
        for index, parameter in enumerate(PARAMETERS):
            if parameter.low is not None:
                assert (source.samples[:, index] >= parameter.low).all()
            if parameter.high is not None:
                assert (source.samples[:, index] <= parameter.high).all()
            if parameter.period is not None and parameter.high is not None:
                assert (source.samples[:, index] < parameter.high).all()
        place = source.samples[:, F0] * T - source.first_bin
        assert ((place > 0) & (place < prior.bins)).all()
        fdot = source.samples[:, 1] * T**2
        assert ((fdot >= prior.fdot_t2_min) & (fdot <= prior.fdot_t2_max)).all()


def test_half_of_the_draws_are_the_other_image(result: Result) -> None:
    second = np.concatenate([source.samples[:, PSI] >= np.pi / 2 for source in result.sources])
    assert second.mean() == pytest.approx(0.5, abs=3 * 0.5 / np.sqrt(second.size))
    turned = np.concatenate([source.samples[:, PHI0] >= np.pi for source in result.sources])
    assert turned.mean() == pytest.approx(0.5, abs=3 * 0.5 / np.sqrt(turned.size))


def test_log_q_is_half_the_density_of_the_folded_source(
    result: Result, year: Observation, untrained: Model
) -> None:
    prior = untrained.preset.prior
    plan = tiles(LOW, HIGH, prior, T)[:1]
    data = spectrum(year, T, untrained.preset.observation.tukey)
    whitening = Whitening(data, untrained.preset, "data", year.path)
    tokens = BandReader(untrained, whitening, result.settings, False)._search(plan[0]).tokens
    with torch.no_grad():
        batch = TokenBatch(*(torch.from_numpy(part[None]) for part in tokens))
        reading = untrained.network.read(batch)
    source = next(s for s in result.sources if s.first_bin == plan[0].first_bin)
    local = torch.from_numpy(to_local_units(fold(source.samples), source.first_bin, T))
    with torch.no_grad():
        density = untrained.network.log_prob(
            local,
            reading.context[:, source.slot].expand(len(local), -1),
            reading.reference[:, source.slot].expand(len(local), -1),
        )
    expected = density.sum(dim=-1).numpy() - np.log(2.0)
    np.testing.assert_allclose(source.log_q, expected, atol=0.02)
    assert np.median(np.abs(source.log_q - expected)) < 1e-3


def test_the_seed_decides(result: Result, year: Observation, untrained: Model) -> None:
    again = posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=400)
    other = posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=400, seed=1)
    first, same, different = (r.sources[0].samples for r in (result, again, other))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, different)


def _assert_equal(one: Result, other: Result) -> None:
    assert one.tiles == other.tiles
    np.testing.assert_array_equal(one.q_k, other.q_k)
    assert len(one.sources) == len(other.sources)
    for a, b in zip(one.sources, other.sources, strict=True):
        assert (a.first_bin, a.slot, a.probability, a.snr) == (
            b.first_bin, b.slot, b.probability, b.snr,
        )  # fmt: skip
        np.testing.assert_array_equal(a.samples, b.samples)
        np.testing.assert_array_equal(a.log_q, b.log_q)


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_the_batch_changes_no_bit(
    result: Result, year: Observation, untrained: Model, batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "BATCH", batch)
    _assert_equal(posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=400), result)


@pytest.mark.parametrize("psd", ["data", "running"])
def test_the_range_changes_no_bit(year: Observation, untrained: Model, psd: str) -> None:
    """What is reported from part of the range is what the whole reports there."""
    whole = posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=400, psd=psd)
    low, high = whole.tiles[1].low + 10.3 / T, whole.tiles[1].high - 7.1 / T
    part = posterior(year, untrained, fmin=low, fmax=high, samples=400, psd=psd)
    assert len(part.tiles) == 1
    expected = tuple(source for source in whole.sources if low <= source.f0 <= high)
    assert expected
    tiles, q_k = whole.tiles[1:2], whole.q_k[1:2]
    _assert_equal(part, replace(whole, sources=expected, tiles=tiles, q_k=q_k))


def test_the_order_and_the_frequencies_reported(result: Result) -> None:
    f0 = [source.f0 for source in result.sources]
    assert f0 == sorted(f0)
    assert f0[0] >= LOW
    assert f0[-1] <= HIGH
    edges = [(tile.low, tile.high) for tile in result.tiles]
    assert edges[0][0] <= LOW + 1 / T
    assert edges[-1][1] >= HIGH - 1 / T
    assert all(a[1] == b[0] for a, b in pairwise(edges))


def test_the_number_of_sources(result: Result) -> None:
    """q(K) is a distribution of mean the sum of the probabilities, as recorded."""
    assert result.q_k.shape == (len(result.tiles), 6)  # five slots
    np.testing.assert_allclose(result.q_k.sum(axis=1), 1.0)
    np.testing.assert_allclose(
        result.q_k @ np.arange(6), [tile.expected for tile in result.tiles], rtol=1e-12
    )


def test_a_calibration_is_applied(result: Result, year: Observation, untrained: Model) -> None:
    """Logits near 20 times 0.05, minus 1: 0; probabilities of a half."""
    other = replace(untrained, calibration=Calibration(0.05, -1.0))
    found = posterior(year, other, fmin=LOW, fmax=HIGH, samples=10, min_probability=0.0)
    raw = {(s.first_bin, s.slot): s.probability for s in result.sources}
    compared = 0
    for source in found.sources:
        if (before := raw.get((source.first_bin, source.slot))) is not None:
            logit = np.log(before / (1.0 - before)) if before < 1.0 else np.nan
            if logit < 25.0:
                expected = 1.0 / (1.0 + np.exp(1.0 - 0.05 * logit))
                assert source.probability == pytest.approx(expected, rel=1e-6)
                compared += 1
    assert compared


def test_bands_are_kept_where_asked_for(
    result: Result, kept: Result, year: Observation, untrained: Model
) -> None:
    assert result.views == {}
    _assert_equal(kept, result)
    assert list(kept.views) == [tile.first_bin for tile in kept.tiles]
    listed: list[int] = []
    raw = spectrum(year, T, untrained.preset.observation.tukey)
    for tile in kept.tiles:
        view = kept.views[tile.first_bin]
        listed += view.sources
        assert {kept.sources[i].first_bin for i in view.sources} <= {tile.first_bin}
        assert view.places.shape == (tile.components,)
        assert view.attention.shape == (5, tile.components)
        assert view.evidence.shape == (6, tile.components)
        np.testing.assert_allclose(view.attention.sum(axis=1), 1.0, rtol=1e-5)
        # what whitens is what it says, level included: the data come back
        scale = np.sqrt(view.psd * (0.5 * T * window_power(untrained.preset.observation.tukey)))
        back = raw.band(tile.first_bin, 256).data
        np.testing.assert_allclose(
            view.data * scale, back, rtol=1e-5, atol=1e-5 * np.abs(back).max()
        )
        frequency = (tile.first_bin + np.arange(256)) / T
        model = standard_psd(frequency, untrained.preset.observation)
        np.testing.assert_allclose(view.psd[0], model[0] * tile.level_a)
    assert sorted(listed) == list(range(len(kept.sources)))


# ---- interrupted, and taken up again


def _interrupted_after(bands: int, seen: list[int]) -> module.Progress:
    def progress(done: int, total: int) -> None:
        seen.append(done)
        if done >= bands:
            raise KeyboardInterrupt

    return progress


def test_a_run_goes_on_where_it_was_interrupted(
    result: Result, year: Observation, untrained: Model, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "BATCH", 1)
    folder, band = tmp_path / "partial", {"fmin": LOW, "fmax": HIGH, "samples": 400}
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        posterior(
            year, untrained, **band, partial=Partial(folder, "run"),  # type: ignore[arg-type]
            progress=_interrupted_after(3, seen),
        )  # fmt: skip
    assert seen == [0, 1, 2, 3]
    again: list[int] = []
    partial = Partial(folder, "run")
    resumed = posterior(
        year, untrained, **band, partial=partial,  # type: ignore[arg-type]
        progress=lambda done, total: again.append(done),
    )  # fmt: skip
    assert again[0] == 2  # two were kept: the third was not finished
    _assert_equal(resumed, result)
    partial.remove()
    assert not folder.exists()


def test_another_run_takes_up_nothing(
    year: Observation, untrained: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 1)
    band = {"fmin": LOW, "fmax": LOW + 2e-6, "samples": 5}
    posterior(year, untrained, **band, partial=Partial(tmp_path / "p", "one"))  # type: ignore[arg-type]
    for identity, first in (("one", 1), ("another", 0)):
        seen: list[int] = []
        posterior(
            year, untrained, **band, partial=Partial(tmp_path / "p", identity),  # type: ignore[arg-type]
            progress=lambda done, total, seen=seen: seen.append(done),  # type: ignore[misc]
        )  # fmt: skip
        assert (seen[0] > 0) == bool(first)


def test_a_known_level_is_used(year: Observation, untrained: Model) -> None:
    known = posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=10, psd="model")
    assert all((tile.level_a, tile.level_e) == (1.0, 1.0) for tile in known.tiles)
    assert any("psd 'model'" in note and "estimated from each band" in note for note in known.notes)
    found = posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=10)
    assert not any("noise level" in note for note in found.notes)
    assert all(0.3 < tile.level_a < 3.0 and tile.level_a != 1.0 for tile in found.tiles)


def test_no_source_is_a_result(year: Observation, untrained: Model) -> None:
    doubtful = Model(untrained.preset, untrained.network, untrained.grid)
    bias = doubtful.network.exists[-1].bias
    assert isinstance(bias, torch.Tensor)
    with torch.no_grad():
        bias.sub_(40.0)
    try:
        nothing = posterior(year, doubtful, fmin=LOW, fmax=HIGH)
    finally:
        with torch.no_grad():
            bias.add_(40.0)
    assert nothing.sources == ()
    assert len(nothing.tiles) > 1


# ---- data that the model cannot use


def test_another_orbit_is_refused(year: Observation, untrained: Model) -> None:
    for change, field in (
        ({"orbit": "keplerian"}, "orbit"),
        ({"orbit_parameters": {"m_init1": 0.5}}, "orbit_m_init1"),
        ({"t0": 86400.0}, "t0"),
    ):
        other = replace(year, **change)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=field):
            posterior(other, untrained, fmin=LOW, fmax=HIGH)


def test_another_starting_phase_turns_the_sky(
    result: Result, year: Observation, untrained: Model
) -> None:
    """The same data under an orbit turned by 0.3 rad are the same sources, turned."""
    parameters = {**year.orbit_parameters, "lambda1": year.orbit_parameters["lambda1"] + 0.3}
    other = replace(year, orbit_parameters=parameters)
    turned = posterior(other, untrained, fmin=LOW, fmax=HIGH, samples=400)
    assert turned.rotation == pytest.approx(0.3)
    assert any("turned by 17.1887 deg" in note for note in turned.notes)
    assert len(turned.sources) == len(result.sources)
    for a, b in zip(turned.sources, result.sources, strict=True):
        np.testing.assert_array_equal(a.samples, rotate_sky(b.samples, turned.rotation))
        np.testing.assert_array_equal(a.log_q, b.log_q)
        here, there = (
            SkyCoord(s.samples[:, RA], s.samples[:, DEC], unit="rad").barycentricmeanecliptic
            for s in (b, a)
        )
        moved = (there.lon.rad - here.lon.rad - 0.3 + np.pi) % (2 * np.pi) - np.pi
        np.testing.assert_allclose(moved * np.cos(here.lat.rad), 0.0, atol=1e-6)
        np.testing.assert_allclose(there.lat.rad, here.lat.rad, atol=1e-6)


def test_gaps_are_noted(year: Observation, untrained: Model) -> None:
    valid = np.ones(year.tdi.shape[1], dtype=bool)
    valid[100_000:120_000] = False
    gappy = replace(year, valid=valid, tdi=np.where(valid, year.tdi, 0.0))
    notes = posterior(gappy, untrained, fmin=LOW, fmax=LOW + 2e-6, samples=1).notes
    assert any("out of distribution" in note for note in notes)


def test_what_is_assumed_is_noted(year: Observation, untrained: Model) -> None:
    other = replace(year, orbit=None, orbit_parameters={}, notes=("of the reader",))
    notes = posterior(other, untrained, fmin=LOW, fmax=HIGH, samples=1).notes
    assert any("orbit" in note and "equal_arm" in note for note in notes)
    assert "of the reader" in notes


@pytest.mark.parametrize("scale", [(0, 0, 0), (0, 1, 0), (1e30, 1e30, 1e30)])
def test_channels_without_a_noise_level(
    year: Observation, untrained: Model, scale: tuple[float, ...]
) -> None:
    """All zero, X and Z zero, or so large that their square is no number."""
    other = replace(year, tdi=year.tdi * np.array(scale)[:, None])
    with pytest.raises(InputError, match=r"channel A, 1\.93.* Hz: noise level") as error:
        posterior(other, untrained, fmin=LOW, fmax=HIGH)
    assert str(error.value).startswith(f"{year.path}: ")


def test_an_odd_noise_level_is_noted(year: Observation, untrained: Model) -> None:
    """Phase in place of fractional frequency, say: all is found, but the user is told."""
    loud = replace(year, tdi=10.0 * year.tdi)
    for psd in ("data", "model"):
        notes = posterior(loud, untrained, fmin=LOW, fmax=LOW + 1e-6, samples=1, psd=psd).notes
        note = next(note for note in notes if "the noise level is" in note)
        assert note.startswith(f"{year.path}: ")
        assert "outside 0.1 to 10 in 1 of 1 bands" in note
        assert "wrong units" in note
        assert "TDI generation" in note


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"samples": 0}, "samples"),
        ({"seed": -1}, "seed"),
        ({"psd": "both"}, "psd: expected data, running, model or the file of a table; got 'both'"),
        ({"min_probability": float("nan")}, "min_probability"),
        ({"fmin": 0.5e-3}, "fmin"),
        ({"fmin": float("nan")}, "fmin"),
        ({"fmax": 3e-3}, "fmax"),
        ({"fmin": HIGH, "fmax": LOW}, "fmin"),
    ],
)
def test_numbers_out_of_range(
    year: Observation, untrained: Model, change: dict[str, float], field: str
) -> None:
    with pytest.raises(InputError, match=field):
        posterior(year, untrained, **change)  # type: ignore[arg-type]


def test_ra_is_summarised_on_the_circle() -> None:
    source = _source(1.5e-3)
    source.samples[:, RA] = np.mod(np.random.default_rng(0).normal(0.0, 0.05, 500), 2 * np.pi)
    assert source.summary.lower[RA] > 6.0
    assert source.summary.upper[RA] < 0.3


def test_no_component_is_reported_twice_whatever_the_threshold(year: Observation) -> None:
    result = posterior(
        year, untrained_model(), fmin=LOW, fmax=HIGH, samples=20, min_probability=0.0
    )
    assert result.sources
    assert all(source.probability > 0.0 for source in result.sources)
