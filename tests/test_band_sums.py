"""Sums over the bins that a response and a band share, against whole arrays in NumPy."""

import numpy as np
import pytest

from slotflow.band_sums import (
    place,
    powers,
    powers_less,
    project,
    snr_grams,
    squared_snr,
    subtract,
)

BINS, N, FIRST = 40, 24, 1000
# inside; cut at the low edge, at the high edge; ending and beginning right outside; far away
STARTS = np.array([1008, 990, 1030, 976, 1040, 5000, -5])


def _complex(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


@pytest.fixture
def made() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    number = len(STARTS)
    return {
        "bases": _complex(rng, number, 2, 2, N),
        "inverse": rng.uniform(0.5, 2.0, (2, BINS)),
        "residual": _complex(rng, number, 2, BINS),
        "weight": rng.uniform(0.5, 2.0, (number, 2)),
    }


def _in_band(responses: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Responses (..., n) of each source, whitened, on the band's bins: by an index to each bin."""
    out = np.zeros((*responses.shape[:-1], BINS), dtype=complex)
    for i, start in enumerate(STARTS):
        for j in range(N):
            if 0 <= start + j - FIRST < BINS:
                out[i, ..., start + j - FIRST] = responses[i, ..., j]
    return out * inverse


def test_subtracted_and_placed(made: dict[str, np.ndarray]) -> None:
    signals, inverse, residual = made["bases"][:, 0], made["inverse"], made["residual"]
    white = _in_band(signals, inverse)
    seen = residual.copy()
    subtract(signals, STARTS, np.arange(len(STARTS)), FIRST, inverse, seen)
    np.testing.assert_allclose(seen, residual - white, atol=1e-12)
    both = np.zeros((1, 2, BINS), dtype=complex)
    subtract(signals, STARTS, np.zeros(len(STARTS), dtype=np.int64), FIRST, inverse, both)
    np.testing.assert_allclose(both[0], -white.sum(axis=0), atol=1e-12)
    out = np.full((len(STARTS), 2, 2, BINS), np.nan, dtype=complex)
    place(made["bases"], STARTS, FIRST, inverse, out)
    np.testing.assert_allclose(out, _in_band(made["bases"], inverse), atol=1e-12)


def test_powers(made: dict[str, np.ndarray]) -> None:
    signals, inverse, residual = made["bases"][:, 0], made["inverse"], made["residual"]
    out = np.empty((len(STARTS), 2))
    powers(residual, out)
    np.testing.assert_allclose(out, (np.abs(residual) ** 2).sum(axis=2), rtol=1e-12)
    white = _in_band(signals, inverse)
    for given in (residual, residual[:1]):
        powers_less(given, signals, STARTS, FIRST, inverse, out)
        np.testing.assert_allclose(out, (np.abs(given - white) ** 2).sum(axis=2), rtol=1e-12)


def test_projections(made: dict[str, np.ndarray]) -> None:
    bases, inverse = made["bases"], made["inverse"]
    white = _in_band(bases, inverse)
    product = np.empty((len(STARTS), 2), dtype=complex)
    gram = np.empty((len(STARTS), 2, 2), dtype=complex)
    for residual in (made["residual"], made["residual"][:1]):
        for weight in (made["weight"], made["weight"][:1]):
            project(bases, STARTS, FIRST, inverse, residual, weight, product, gram)
            scaled = white.conj() * weight[:, None, :, None]
            expected = (scaled * residual[:, None]).sum(axis=(2, 3))
            np.testing.assert_allclose(product, expected, atol=1e-12)
            expected = np.einsum("npck,nqck->npq", scaled, white)
            np.testing.assert_allclose(gram, expected, atol=1e-12)


def test_snr_is_over_all_bins(made: dict[str, np.ndarray]) -> None:
    """Weights hold beyond the ends of their table."""
    bases, first = made["bases"], FIRST - 6
    inverse2 = np.random.default_rng(2).uniform(0.5, 2.0, (2, BINS + 12))
    at = np.clip(STARTS[:, None] + np.arange(N) - first, 0, BINS + 11)
    weight = inverse2[:, at].transpose(1, 0, 2)
    out = np.empty(len(STARTS))
    squared_snr(bases[:, 0], STARTS, first, inverse2, out)
    expected = 2.0 * (np.abs(bases[:, 0]) ** 2 * weight).sum(axis=(1, 2))
    np.testing.assert_allclose(out, expected, rtol=1e-12)
    gram = np.empty((len(STARTS), 2, 2), dtype=complex)
    snr_grams(bases, STARTS, first, inverse2, gram)
    expected = np.einsum("npck,nck,nqck->npq", bases.conj(), weight, bases)
    np.testing.assert_allclose(gram, expected, atol=1e-12)
