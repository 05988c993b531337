"""For the tests of refinement: a band with known sources in white noise, and simple references."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from slotflow.config import load_preset
from slotflow.likelihood import BandLikelihood, training_sigma
from slotflow.refine_moves import SourceMoves
from slotflow.refine_space import BIN, COS_IOTA, DRIFT, LN_A, PHI0, PSI, RA, SIN_DEC, Space
from slotflow.response import ResponseGrid
from slotflow.simulate.orbits import response_grid

Float = np.typing.NDArray[np.float64]

FIRST_BIN = 47058  # about 1.5 mHz
PRESET = load_preset("tiny")
TRUTH = np.array([101.3, 0.08, -50.0, 1.9, 0.35, 0.4, 0.45, 2.2])


@lru_cache(maxsize=1)
def grid() -> ResponseGrid:
    return response_grid(PRESET.observation, PRESET.components.slow_samples)


def space() -> Space:
    return Space(FIRST_BIN, PRESET.observation.duration, PRESET.prior)


def band(truths: list[Float], snrs: list[float], seed: int = 1) -> tuple[BandLikelihood, Float]:
    """Return a band of sources at these SNRs, and the sources as x (S, 8)."""
    observation, prior = PRESET.observation, PRESET.prior
    sigma = training_sigma(observation, FIRST_BIN, prior.bins, prior)
    rng = np.random.default_rng(seed)
    noise = np.sqrt(0.5) * rng.standard_normal((2, prior.bins, 2)).view(np.complex128)[..., 0]
    arguments = FIRST_BIN, np.ones(2), sigma, grid(), observation, prior
    empty = BandLikelihood(noise, *arguments, mismatch=1e-6)
    x = np.array(truths, dtype=np.float64).reshape(len(truths), 8)
    for row, snr in zip(x, snrs, strict=True):
        row[LN_A] += np.log(snr / empty.snr(space().to_sources(row[None]))[0])
    data = noise + empty.model(space().to_sources(x)).sum(axis=0) if len(x) else noise
    return BandLikelihood(data, *arguments, mismatch=1e-6), x


@dataclass(frozen=True)
class Simple:
    """Normal in bin, ln amplitude and sky; the prior in the rest."""

    mean: Float
    width: tuple[float, float, float, float]  # bin, ln amplitude, ra, sin dec

    def draw(self, number: int, rng: np.random.Generator) -> tuple[Float, Float]:
        x = np.empty((number, 8))
        x[:, _NORMAL] = self.mean[_NORMAL] + rng.standard_normal((number, 4)) * self.width
        for column, low, high in _UNIFORM:
            x[:, column] = rng.uniform(low, high, number)
        return x, self.log_density(x)

    def log_density(self, x: Float) -> Float:
        z = (x[:, _NORMAL] - self.mean[_NORMAL]) / self.width
        spans = sum(np.log(high - low) for _, low, high in _UNIFORM)
        norm = np.log(self.width).sum() + 2.0 * np.log(2.0 * np.pi) + spans
        return np.asarray(-0.5 * (z**2).sum(axis=1) - norm)


_NORMAL = [BIN, LN_A, RA, SIN_DEC]
_UNIFORM = (
    (DRIFT, -0.1, 0.3), (PSI, 0.0, 0.5 * np.pi), (COS_IOTA, -1.0, 1.0), (PHI0, 0.0, 2.0 * np.pi),
)  # fmt: skip
WIDTH = (0.15, 0.35, 0.12, 0.12)


def problem(
    likelihood: BandLikelihood, means: list[Float], seed: int = 0,
    width: tuple[float, float, float, float] = WIDTH,
) -> SourceMoves:  # fmt: skip
    references = [Simple(mean, width) for mean in means]
    rng = np.random.default_rng(seed)
    return SourceMoves(likelihood, space(), references, rng)
