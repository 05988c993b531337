"""Bands whose vectors are Gaussian, and the score that is fitted to them."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from slotflow.outlying import Outlying, Part
from slotflow.outlying_features import CONDITIONS, KINDS, BandVectors
from slotflow.outlying_fit import calibrated, fit_part
from slotflow.tokens import TOKEN_WIDTH

WIDTHS = dict(zip(KINDS, (2, 2, 8, 8, 5, 3, 3, 2, TOKEN_WIDTH, 16), strict=True))
SEVERAL = ("components", "slots")


def gaussian_bands(
    seed: int, number: int, widths: dict[str, int] | None = None
) -> list[BandVectors]:
    """Bands of correlated Gaussian vectors about a mean that depends on the conditions."""
    widths = WIDTHS if widths is None else widths
    rng, mixing, slope = np.random.default_rng(seed), {}, {}
    for name, width in widths.items():
        law = np.random.default_rng(KINDS.index(name))
        mixing[name] = np.eye(width) + 0.4 / width**0.5 * law.standard_normal((width, width))
        slope[name] = 3.0 * law.standard_normal((CONDITIONS, width))
    bands = []
    for _ in range(number):
        weights = rng.dirichlet(np.ones(CONDITIONS))
        vectors = {}
        for name, width in widths.items():
            n = int(rng.integers(0, 5)) if name in SEVERAL else 1
            noise = rng.standard_normal((n, width)) @ mixing[name].T
            vectors[name] = weights @ slope[name] + noise
        bands.append(BandVectors(weights, vectors))
    return bands


def fitted(bands: Sequence[BandVectors], others: Sequence[BandVectors]) -> Outlying:
    """The score of some bands, its threshold from others."""
    return calibrated([fit_part(name, bands) for name in KINDS], others, len(bands))


@lru_cache(maxsize=4)
def example_score(slots: int = 16) -> Outlying:
    """A score of vectors of these widths, that of ``slots`` apart."""
    widths = WIDTHS | {"slots": slots}
    return fitted(gaussian_bands(1, 400, widths), gaussian_bands(2, 400, widths))


def plain_score(widths: Mapping[str, int], threshold: float = 1.0) -> Outlying:
    """A score of vectors of these widths about zero, with unit covariance; nothing is fitted."""
    parts = tuple(Part(name, np.zeros((CONDITIONS, w)), np.eye(w)) for name, w in widths.items())
    return Outlying(
        parts, np.zeros(len(parts)), np.ones(len(parts)), threshold, np.array([0.5, 0.01]),
        np.array([0.0, 1.0]), 1, 999,
    )  # fmt: skip
