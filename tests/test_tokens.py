"""Token features: invariance, widths, and which component stands for which source."""

import numpy as np
import pytest

from slotflow.tokencache import from_local_units, standing_components, to_local_units
from slotflow.tokens import BAND_WIDTH, REFERENCE, TOKEN_WIDTH, band_tokens, references
from slotflow.tokens import token_features as features_of
from tests.synthetic import BINS, DURATION, FIRST, component_set, random_sources


def sources_of(seed: int, n: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return random_sources(rng, n, (FIRST + 40) / DURATION, (FIRST + 216) / DURATION, DURATION)


def test_features_do_not_see_a_global_phase() -> None:
    found = component_set(np.random.default_rng(0), sources_of(1), 2)
    rotated = found.components.copy()
    for name in ("plus", "cross"):
        rotated[name] *= np.exp(0.7j)
    window = (32.0, 224.0)
    a, b = (features_of(c, window, BINS) for c in (found.components, rotated))
    assert np.allclose(a, b, atol=1e-10)
    moved = references(rotated) - references(found.components)
    phases = [REFERENCE.index("phase_right"), REFERENCE.index("phase_left")]
    turn = np.angle(np.exp(1j * (moved[:, phases] - 0.7)))
    assert np.allclose(turn, 0.0, atol=1e-10)
    assert np.allclose(np.delete(moved, phases, axis=1), 0.0, atol=1e-10)


def test_widths_and_padding() -> None:
    found = component_set(np.random.default_rng(0), sources_of(1), 1)
    tokens = band_tokens(found, FIRST, BINS, DURATION, (32.0, 224.0), 9)
    assert tokens.features.shape == (9, TOKEN_WIDTH)
    assert tokens.band.shape == (BAND_WIDTH,)
    assert tokens.reference.shape == (9, len(REFERENCE))
    assert tokens.valid.sum() == 7
    assert not tokens.features[7:].any()
    with pytest.raises(ValueError, match="expected at most 5 components; got 7"):
        band_tokens(found, FIRST, BINS, DURATION, (32.0, 224.0), 5)


def test_no_components() -> None:
    found = component_set(np.random.default_rng(0), sources_of(1, 0), 0)
    tokens = band_tokens(found, FIRST, BINS, DURATION, (32.0, 224.0), 4)
    assert not tokens.valid.any()
    assert np.isfinite(tokens.reference).all()


def test_references_recover_the_sources_inclination_and_phases() -> None:
    sources = sources_of(3, 40)
    found = component_set(np.random.default_rng(2), sources, 0)
    ref = references(found.components)
    assert np.allclose(ref[:, REFERENCE.index("cos_iota")], np.cos(sources[:, 6]), atol=1e-9)
    right = np.angle(np.exp(1j * (ref[:, 9] - (2 * sources[:, 5] - sources[:, 7]))))
    left = np.angle(np.exp(1j * (ref[:, 10] - (-2 * sources[:, 5] - sources[:, 7]))))
    assert np.allclose(right, 0, atol=1e-6)
    assert np.allclose(left, 0, atol=1e-6)


def test_standing_components_are_one_to_one_and_gated() -> None:
    sources = sources_of(4, 5)
    sources[1, 0] = sources[0, 0]  # two at one frequency: the sky tells them apart
    found = component_set(np.random.default_rng(5), sources, 3)
    order = np.random.default_rng(6).permutation(8)
    ref = references(found.components[order])
    snr = np.full(5, 24.0)
    got = standing_components(ref, sources, snr, FIRST, DURATION)
    assert np.array_equal(order[got], np.arange(5))
    far = sources.copy()
    far[2, 0] += 300.0 / DURATION
    assert standing_components(ref, far, snr, FIRST, DURATION)[2] == -1
    assert (standing_components(ref[:0], sources, snr, FIRST, DURATION) == -1).all()


def test_local_units_invert() -> None:
    sources = sources_of(7, 50)
    again = from_local_units(to_local_units(sources, FIRST, DURATION), FIRST, DURATION)
    assert np.allclose(again, sources, rtol=1e-9, atol=0)
