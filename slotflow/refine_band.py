"""The exact posterior of all sources of one band together, as a problem for tempered SMC.

The target is the training prior of S sources times the likelihood of the whitened band over that
of noise alone, so that its integral Z is the evidence for S sources against none. Sources carry
no order: Z is S! times the integral over one order. The reference is a product of densities, one
a source; where those of two sources can be confused it is made symmetric under their exchange,
so that one labelling of the draws stands for all, with its share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import lgamma
from typing import Final, Protocol

import numpy as np
import scipy.special
from numpy.typing import NDArray

from slotflow.likelihood import INTRINSIC, BandLikelihood
from slotflow.refine_kernels import add_signals, coefficients, gains, project
from slotflow.refine_space import BIN, Space, traced

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]
Int = NDArray[np.int64]

CLOSE_BINS: Final = 4.0  # medians of two references nearer than this may be confused
CHUNK: Final = 512  # draws evaluated at a time: bounds the memory
_NEGLIGIBLE: Final = 20.0  # by so much less, in ln density
_LOOK: Final = 128  # draws by which references are compared


class Reference(Protocol):
    """A normalised density of one source in x (:mod:`slotflow.refine_space`)."""

    def draw(self, number: int, rng: np.random.Generator) -> tuple[Float, Float]:
        """Return draws, (number, 8), and ln density there, (number,)."""
        ...

    def log_density(self, x: Float) -> Float:
        """Return ln density: (n, 8) -> (n,)."""
        ...


@dataclass(eq=False)
class Placed:
    """One source of each particle at its place: (P, ...) arrays as :func:`project` makes them."""

    spectra: Complex
    first: Int
    product: Complex
    gram: Complex
    snr_gram: Complex


@dataclass(frozen=True, eq=False)
class Cloud:
    """N particles of S sources.

    Attributes:
        x: (N, S, 8).
        log_target: (N,).
        densities: (N, S, S) ln density of reference t for source s; -inf for far pairs.
        placed: S records, None until the cloud is settled.
        residual: (N, 2, K) the band less all sources, to unit noise; None until then.
    """

    x: Float
    log_target: Float
    densities: Float
    placed: tuple[Placed, ...] | None = None
    residual: Complex | None = None

    @property
    def log_reference(self) -> Float:
        """Ln density of the reference, symmetric under exchange: (N,)."""
        return symmetrised(self.densities)

    def take(self, index: Int) -> "Cloud":
        """Return the particles of these indices, to be settled again."""
        return Cloud(self.x[index], self.log_target[index], self.densities[index])

    def join(self, other: "Cloud") -> "Cloud":
        """Return these particles and others, to be settled again."""
        return Cloud(
            np.concatenate([self.x, other.x]),
            np.concatenate([self.log_target, other.log_target]),
            np.concatenate([self.densities, other.densities]),
        )

    def coordinates(self) -> Float:
        """Return (N, D) numbers without seams."""
        return traced(self.x)


def symmetrised(densities: Float) -> Float:
    """Return ln of the mean over exchanges of the product of densities: (N, S, S) -> (N,)."""
    number = densities.shape[1]
    rows = np.arange(number)
    parts = [densities[:, list(order), rows].sum(axis=1) for order in permutations(range(number))]
    return np.asarray(scipy.special.logsumexp(parts, axis=0) - lgamma(number + 1.0))


class BandProblem:
    """What is sampled, with the numbers that do not change.

    Args:
        likelihood: of the band.
        space: its coordinates.
        references: one a source.
        rng: for a few draws that tell which references are close.

    Attributes:
        close: (S, S) whether two references may be confused.
    """

    def __init__(
        self, likelihood: BandLikelihood, space: Space, references: Sequence[Reference],
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.likelihood, self.space, self.references = likelihood, space, tuple(references)
        root = np.sqrt(likelihood.level)[:, None]
        self.data = likelihood.data / root
        self.weight = 1.0 / (likelihood.sigma * root)
        self.power = float((np.abs(self.data) ** 2).sum())
        self.close = _confused(self.references, rng)

    @property
    def number(self) -> int:
        """S, the number of sources."""
        return len(self.references)

    def draw(self, number: int, rng: np.random.Generator) -> Cloud:
        """Return particles drawn from the reference, one labelling of it."""
        x = np.empty((number, self.number, 8))
        densities = np.empty((number, self.number, self.number))
        for s, reference in enumerate(self.references):
            x[:, s], own = reference.draw(number, rng)
            densities[:, :, s] = self.densities_at(s, x[:, s], own)
        return Cloud(x, self.log_target_at(x), densities)

    def log_target_at(self, x: Float) -> Float:
        """Return ln target of particles, -inf outside the prior: (N, S, 8) -> (N,)."""
        parts = [self._log_target(x[at : at + CHUNK]) for at in range(0, len(x), CHUNK)]
        return np.concatenate(parts)

    def densities_at(self, s: int, x: Float, own: Float | None = None) -> Float:
        """Return ln density of the references that may be confused with s: (n, 8) -> (n, S).

        ``own``: (n,) that of reference s, where it is known.
        """
        out = np.full((len(x), self.number), -np.inf)
        for t in np.flatnonzero(self.close[s]):
            known = own is not None and t == s
            out[:, t] = own if known else self.references[t].log_density(x)
        return out

    def settle(self, state: Cloud, temperature: float) -> Cloud:
        """Return the cloud with responses and residuals."""
        residual = np.tile(self.data, (len(state.x), 1, 1))
        placed = []
        for s in range(self.number):
            x = np.ascontiguousarray(state.x[:, s])
            one = self.place(x, residual, np.arange(len(x)))
            self.subtract(residual, one, x)
            placed.append(one)
        return replace(state, placed=tuple(placed), residual=residual)

    def place(self, x: Float, residual: Complex, rows: Int) -> Placed:
        """Return sources (P, 8) at their places, against the residuals of these rows."""
        sources = self.space.to_sources(x)
        intrinsic = np.ascontiguousarray(sources[:, INTRINSIC])
        spectra, first, snr_gram = self.likelihood.spectra(intrinsic)
        one = Placed(
            spectra, first - self.likelihood.first_bin, np.empty((len(x), 2), np.complex128),
            np.empty((len(x), 2, 2), np.complex128), snr_gram,
        )  # fmt: skip
        self.project(one, residual, rows)
        return one

    def project(self, one: Placed, residual: Complex, rows: Int) -> None:
        """Update a record's products for these residuals."""
        project(
            one.spectra, one.first, rows, residual, self.weight, one.product, one.gram,
        )  # fmt: skip

    def subtract(self, residual: Complex, one: Placed, x: Float, sign: float = -1.0) -> None:
        """Take signals out of residuals, in place; or put them back with ``sign=1``."""
        values = np.empty((len(x), 2), np.complex128)
        coefficients(x, values)
        add_signals(residual, one.spectra, one.first, values, self.weight, sign)

    def allowed(self, x: Float, snr2: Float) -> NDArray[np.bool_]:
        """Return whether sources lie in the prior: (P, 8) and their squared SNR (P,)."""
        low, high = self.space.snr
        return np.asarray(self.space.inside(x) & (snr2 >= low * low) & (snr2 <= high * high))

    def _log_target(self, x: Float) -> Float:
        residual = np.tile(self.data, (len(x), 1, 1))
        inside = np.ones(len(x), dtype=bool)
        for s in range(self.number):
            here = np.ascontiguousarray(x[:, s])
            inside &= self.space.inside(here)
            here[:, BIN] = np.clip(here[:, BIN], 0.0, self.space.bins)
            one = self.place(here, residual, np.arange(len(here)))
            inside &= self.allowed(x[:, s], measured(one, here)[1])
            self.subtract(residual, one, here)
        return np.where(inside, self.log_target_of(residual), -np.inf)

    def log_target_of(self, residual: Complex) -> Float:
        """Return ln target of particles inside the prior, by their residuals: (N, 2, K) -> (N,)."""
        power = np.einsum("nck,nck->n", residual.view(np.float64), residual.view(np.float64))
        return np.asarray(self.power - power + self.number * self.space.log_prior)


def _confused(references: Sequence[Reference], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which references may be taken for each other, by a few draws of each: (S, S)."""
    draws = [one.draw(_LOOK, rng) for one in references]
    places = [np.median(x[:, BIN]) for x, _ in draws]
    close = np.abs(np.subtract.outer(places, places)) < CLOSE_BINS
    for s, t in np.argwhere(close):
        if s != t:
            other = references[t].log_density(draws[s][0])
            close[s, t] = other.max() > draws[t][1].min() - _NEGLIGIBLE
    return np.asarray(close | close.T)


def measured(one: Placed, x: Float) -> tuple[Float, Float]:
    """Return ln L over that without the source, and the squared SNR, of sources x: (P,) each."""
    gain, snr2 = np.empty(len(x)), np.empty(len(x))
    gains(x, one.product, one.gram, one.snr_gram, gain, snr2)
    return gain, snr2
