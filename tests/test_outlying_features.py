"""slotflow.outlying_features: what the vectors see, and that order does not matter."""

import numpy as np
import pytest

from slotflow.components import COMPONENT_DTYPE
from slotflow.config import load_preset
from slotflow.outlying_features import (
    CLEAR,
    CONDITIONS,
    KINDS,
    PIECES,
    Content,
    Slots,
    band_vectors,
    conditions,
    content,
    noise_vectors,
    residual,
    widths,
)
from slotflow.response import ResponseGrid, response
from slotflow.tokens import band_tokens
from tests.synthetic import BINS, DURATION, FIRST, component_set, random_sources

SIGMA = np.array([2e-16, 3e-16])
WINDOW = (32.0, 224.0)


def unit_noise(seed: int, bins: int = BINS) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((2, bins, 2)) @ np.array([1.0, 1j])) / np.sqrt(2.0)


def components(sources: np.ndarray) -> np.ndarray:
    """Components that are exactly these sources."""
    c = np.zeros(len(sources), dtype=COMPONENT_DTYPE)
    c["bin"] = sources[:, 0] * DURATION - FIRST
    c["ra"], c["dec"] = sources[:, 3], sources[:, 4]
    c["fdot_t2"] = sources[:, 1] * DURATION**2
    amplitude, cos, psi = sources[:, 2], np.cos(sources[:, 6]), sources[:, 5]
    plus, cross = -amplitude * (1 + cos**2), -2.0 * amplitude * cos
    phase = np.exp(-1j * sources[:, 7])
    c["plus"] = phase * (plus * np.cos(2 * psi) + 1j * cross * np.sin(2 * psi))
    c["cross"] = phase * (plus * np.sin(2 * psi) - 1j * cross * np.cos(2 * psi))
    c["f_statistic"] = np.linspace(200.0, 10.0, len(sources))
    return c


def test_exact_components_leave_nothing(slow_grid: ResponseGrid) -> None:
    """By the response of one source (slotflow.response), summed here by hand."""
    rng = np.random.default_rng(1)
    low, high = (FIRST - 5) / DURATION, (FIRST + BINS + 5) / DURATION  # some are cut
    sources = random_sources(rng, 6, low, high, DURATION)
    data = np.zeros((3, BINS), dtype=np.complex128)
    for wave, first in zip(*response(sources, slow_grid), strict=True):
        for k in range(wave.shape[1]):
            if 0 <= first + k - FIRST < BINS:
                data[:2, first + k - FIRST] += wave[:2, k] / SIGMA
    scale = np.abs(data).max()
    left = residual(data, components(sources), FIRST, SIGMA, slow_grid)
    assert np.abs(left).max() < 1e-6 * scale
    nothing = residual(data, components(sources)[:0], FIRST, SIGMA, slow_grid)
    np.testing.assert_array_equal(nothing, data[:2])
    held = content(data, components(sources), np.ones(2), FIRST, SIGMA, WINDOW, slow_grid)
    np.testing.assert_allclose(held.left, left, atol=1e-9 * scale)
    faint = 2.0 * components(sources)["f_statistic"] <= CLEAR
    assert faint.any()
    own = residual(data, components(sources)[~faint], FIRST, SIGMA, slow_grid)
    np.testing.assert_allclose(held.coarse, own)
    assert np.abs(held.coarse).max() > 1e-3 * scale


def vectors(left: np.ndarray) -> dict[str, np.ndarray]:
    return noise_vectors(left, left, np.ones(2))


def test_noise_that_is_level_is_told_as_level() -> None:
    found = [vectors(unit_noise(seed)) for seed in range(200)]
    for name in ("shape", "time"):
        mean = np.mean([np.exp(one[name]) for one in found], axis=0)
        np.testing.assert_allclose(mean, 1.0, atol=0.05)  # power a channel
    assert abs(np.mean([one["tilt"] for one in found])) < 0.05
    level = noise_vectors(unit_noise(0), unit_noise(0), np.array([2.0, 3.0]))["level"]
    np.testing.assert_allclose(level, np.log([2.0, 3.0]))


def test_each_kind_sees_what_it_is_for() -> None:
    noise = unit_noise(1)
    plain, bins = vectors(noise), np.arange(BINS)
    ramp = np.exp(0.5 * np.linspace(-1.0, 1.0, BINS))
    assert vectors(noise * ramp)["tilt"][0] > plain["tilt"][0] + 2.0
    bump = np.where((bins > 100) & (bins < 130), 3.0, 1.0)
    assert np.argmax(vectors(noise * bump)["shape"] - plain["shape"]) in (3, 4)
    # a transient at 0.3 of the observation is one sample of the band's own series
    glitch = noise + 1.5 * np.exp(-2j * np.pi * bins * 0.3)
    found = vectors(glitch)
    assert np.argmax(found["time"] - plain["time"]) == int(0.3 * PIECES)
    np.testing.assert_allclose(np.exp(found["peaks"][0]), 2 * 1.5**2 * BINS, rtol=0.2)
    loud = noise.copy()
    loud[:, :6] *= 10.0
    assert vectors(loud)["peaks"][3] > plain["peaks"][3] + 4.0
    assert vectors(loud)["peaks"][4] == plain["peaks"][4]
    np.testing.assert_allclose(vectors(loud)["shape"], plain["shape"])  # which leaves the ends out


def test_a_rotation_of_all_phases_does_not_matter() -> None:
    noise = unit_noise(2)
    a, b = vectors(noise), vectors(noise * np.exp(1.3j))
    for name, values in a.items():
        np.testing.assert_allclose(values, b[name], atol=1e-10)


def test_the_order_of_components_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    sources = random_sources(rng, 3, (FIRST + 40) / DURATION, (FIRST + 216) / DURATION, DURATION)
    found = component_set(rng, sources, 3)
    order = rng.permutation(6)
    logits, left = rng.standard_normal(6), unit_noise(4)
    slots = Slots(np.array([0.9, 0.0, 0.7]), rng.standard_normal((3, 5)), logits)
    prior = load_preset("shipped").prior
    bands = []
    for place in (np.arange(6), order):
        c = found.components[place]
        tokens = band_tokens(found.__class__(c, found.level, found.residual), FIRST, BINS,
                             DURATION, WINDOW, 10)  # fmt: skip
        held = Content(c, found.level, left, left, WINDOW)
        bands.append(
            band_vectors(tokens, held, slots._replace(component=logits[place]), 1.5e-3, prior)
        )
    for name in KINDS:
        a, b = (np.sort(one.vectors[name], axis=0) for one in bands)
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert bands[0].vectors["slots"].shape == (2, 5)  # of the two that are likely
    number, claims = bands[0].vectors["number"][0], bands[0].vectors["claims"][0]
    np.testing.assert_array_equal(number, [6, 3, 3])  # 300 and 15: three are clear
    inside = (found.components["bin"] >= 32) & (found.components["bin"] <= 224)
    stands = 1.0 / (1.0 + np.exp(-logits))
    assert claims[0] == pytest.approx(1.6)
    assert claims[1] == pytest.approx(stands[inside].sum() - 1.6)


def test_the_means_depend_on_the_frequency() -> None:
    prior = load_preset("shipped").prior
    for frequency in (prior.fmin, 1.37e-3, prior.fmax):
        weights = conditions(frequency, 0.75, prior)
        assert weights.shape == (CONDITIONS,)
        assert weights[:-1].sum() == pytest.approx(1.0)
        knots = np.linspace(prior.fmin, prior.fmax, CONDITIONS - 1)
        assert weights[:-1] @ knots == pytest.approx(frequency)
    beyond = conditions(5e-3, 0.75, prior)
    np.testing.assert_array_equal(beyond, conditions(prior.fmax, 0.75, prior))


@pytest.mark.parametrize("preset", ["shipped", "crowded", "high"])
def test_widths_are_those_of_the_vectors(preset: str) -> None:
    """Of bands without any component, too; of every length of band that there is."""
    settings = load_preset(preset)
    bins, width = settings.prior.bins, settings.model.context
    left = unit_noise(5, bins)
    found = component_set(np.random.default_rng(0), np.empty((0, 8)), 0)
    tokens = band_tokens(found, FIRST, bins, DURATION, (0.0, float(bins)), 4)
    held = Content(found.components, np.ones(2), left, left, (0.0, float(bins)))
    slots = Slots(np.zeros(5), np.zeros((5, width)), np.zeros(0))
    band = band_vectors(tokens, held, slots, settings.prior.fmin, settings.prior)
    assert {name: v.shape[1] for name, v in band.vectors.items()} == widths(settings.model)
    assert all(np.isfinite(v).all() for v in band.vectors.values())
    assert tuple(band.vectors) == KINDS
