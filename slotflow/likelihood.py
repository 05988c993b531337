"""The Gaussian likelihood of a whitened band for any number of binaries, in float64.

The data are ``d = sum of signals + noise`` in A and E at K Fourier bins, whitened by a given
amplitude ``sigma`` per bin; the noise is complex Gaussian, independent from bin to bin, with power
``E|n|^2 = level`` per channel. So

    ln L = - sum over A, E and bins of ( ln(pi level) + |d - h|^2 / level ),

a normalised density of the whitened data with respect to d(Re) d(Im) of each of the 2 K numbers:
nothing is dropped, and evidences may be compared between any models of the same whitened data.
Noise that is not white may be given by its covariance over the observation
(:class:`slotflow.exact_modulation.Modulation`) and by a power that varies from bin to bin: data and
signals are then divided by both, first over time, then by bin, and ln L is still the density of
the data as they came, up to the covariance's being taken on the circle of the band's bins.
Signals are cut at the band's edges. Gaps in the data are not: of a signal they take its share
of power alone, by ``sigma``.

Sources are rows of :data:`slotflow.parameters.PARAMETERS`, P particles of S sources each
(P, S, 8); one source of each particle (P, 8). Everything is linear in two complex coefficients a
source; :mod:`slotflow.amplitudes` has what follows from that. The prior is the training prior
(:mod:`slotflow.source_prior`).
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.band_sums import (
    place,
    powers,
    powers_less,
    project,
    snr_grams,
    squared_snr,
    subtract,
)
from slotflow.config import ObservationSettings, PriorSettings
from slotflow.exact_grid import MISMATCH, kernel_at
from slotflow.exact_kernel import Kernel
from slotflow.exact_modulation import ModulatedKernel, Modulation
from slotflow.noise import model_psd, standard_psd, window_power
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, RA
from slotflow.projection import JointProjection, Projection, joined
from slotflow.response import ResponseGrid
from slotflow.source_prior import SourcePrior, snr_density

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

INTRINSIC: Final = [F0, FDOT, RA, DEC]  # the columns that are not amplitudes
LEVEL_SIGMA: Final = 0.1  # of ln level about its estimate, where the level is a parameter


class SnrWeights(NamedTuple):
    """One over the squared noise per bin, ``values`` (2, W) from the bin ``first`` on."""

    first: int
    values: Float


class BandLikelihood:
    """ln L and ln prior of one band.

    Args:
        data: (2, K) complex, whitened A and E.
        first_bin: Fourier bin of the first column.
        level: (2,) noise power per bin, ``E|n|^2``.
        sigma: (2,) or (2, K) the whitening's divisor of A and E, in the data's own unit
            (:func:`bin_sigma`).
        grid: the model's observation.
        observation: its settings.
        prior: the training prior.
        mismatch: of the responses to the converged ones, at most; ln L is off by that times half
            of SNR^2 or so, and 1e-6 takes a third of the time of 1e-8.
        modulation: of the noise over the observation; None: the same at all times.
        profile: (2, K) power of the noise by bin over ``level``; None: 1.

    Attributes:
        data: (2, K) divided by the modulation and the profile, as the signals of
            :meth:`residual`, :meth:`model` and :meth:`basis` are.
        sigma: (2, K) what divides signals by bin, the profile counted.
        level: (2,).
        prior: :class:`slotflow.source_prior.SourcePrior`, of one source.
        log_noise: ln L without any source.
        ln_volume: ln of the divided data's volume over that of the data as they came.
        snr_weights: by which the SNR is defined.

    Raises:
        ValueError: an array of another shape, a number that is not finite, a level or sigma that
            is not positive, or a prior that is not known in closed form.
    """

    def __init__(
        self,
        data: NDArray[np.complexfloating],
        first_bin: int,
        level: Float,
        sigma: Float,
        grid: ResponseGrid,
        observation: ObservationSettings,
        prior: PriorSettings,
        mismatch: float = MISMATCH,
        modulation: Modulation | None = None,
        profile: Float | None = None,
    ) -> None:
        self.data = np.ascontiguousarray(data, dtype=np.complex128)
        if self.data.ndim != 2 or len(self.data) != 2 or not np.isfinite(self.data).all():
            raise ValueError(f"expected finite data of shape (2, K); got shape {self.data.shape}")
        self.bins = self.data.shape[1]
        self.first_bin, self.duration = int(first_bin), grid.duration
        self.level = np.asarray(level, dtype=np.float64)
        self.sigma = np.ascontiguousarray(
            np.broadcast_to(np.asarray(sigma, np.float64).reshape(2, -1), (2, self.bins))
        )
        if self.level.shape != (2,) or not (self.level > 0).all() or not (self.sigma > 0).all():
            raise ValueError("expected two positive levels and positive sigmas")
        self.plain = kernel_at(
            grid, observation, (self.first_bin + self.bins) / self.duration, mismatch
        )
        self.kernel: Kernel = self.plain
        self.ln_volume = 0.0
        self._divide(modulation, profile)
        self.prior = SourcePrior(prior, first_bin, grid.duration)
        self._inverse = 1.0 / self.sigma
        # as far as the training set's own simulation looks; beyond, the density is taken as level
        reach = prior.margin + 129
        sigma = training_sigma(observation, first_bin - reach, self.bins + 2 * reach, prior)
        self.snr_weights = SnrWeights(first_bin - reach, 1.0 / sigma**2)
        self.log_noise = float(self.log_likelihood_of(self.data[None])[0])

    def _divide(self, modulation: Modulation | None, profile: Float | None) -> None:
        """Divide data and signals by what makes the noise other than white."""
        if modulation is not None:
            # as the signals are: before they are whitened by bin
            self.data = modulation.filtered(self.data * self.sigma) / self.sigma
            self.kernel = ModulatedKernel(self.plain.grid, modulation)
            self.ln_volume -= modulation.log_det(self.bins)
        if profile is not None:
            if profile.shape != self.data.shape or not (profile > 0.0).all():
                raise ValueError("expected a positive profile of the data's shape")
            self.data = self.data / np.sqrt(profile)
            self.sigma = self.sigma * np.sqrt(profile)
            self.ln_volume -= float(np.log(profile).sum())

    def log_likelihood(self, sources: Float, ln_level: Float | None = None) -> Float:
        """Return ln L of P particles of S sources: (P, S, 8) -> (P,).

        Args:
            sources: S may be 0.
            ln_level: (P, 2) logarithm of the noise level over :attr:`level`, where the level is a
                parameter.
        """
        return self.log_likelihood_of(self.residual(sources), ln_level)

    def log_likelihood_of(self, residual: Complex, ln_level: Float | None = None) -> Float:
        """Return ln L where these are the data less all signals: (P, 2, K) -> (P,)."""
        power = np.empty((len(residual), 2))
        powers(residual, power)
        return self._log_density(power, ln_level)

    def _log_density(self, power: Float, ln_level: Float | None) -> Float:
        level = self.level * (1.0 if ln_level is None else np.exp(ln_level))
        terms = power / level + self.bins * np.log(np.pi * level)
        return np.asarray(self.ln_volume - terms.sum(axis=-1))

    def log_likelihood_with(
        self, residual: Complex, sources: Float, ln_level: Float | None = None
    ) -> Float:
        """Return ln L after one more source a particle: (P, 2, K), (P, 8) -> (P,).

        ``residual`` is the data less all the other sources; (2, K) serves all particles.
        """
        residual = residual.reshape(-1, 2, self.bins)
        power = np.empty((len(sources), 2))
        for rows, signals, first in self.kernel.signals(sources):
            some = residual[rows] if len(residual) > 1 else residual
            powers_less(some, signals, first, self.first_bin, self._inverse, power[rows])
        return self._log_density(power, ln_level)

    def model(self, sources: Float) -> Complex:
        """Return each source's whitened signal in the band: (N, 8) -> (N, 2, K)."""
        return -self._less(np.zeros((2, self.bins)), sources[:, None])[0]

    def residual(self, sources: Float) -> Complex:
        """Return the data less all sources: (P, S, 8) -> (P, 2, K)."""
        return self._less(self.data, sources)[0]

    def _less(self, data: NDArray[np.inexact], sources: Float) -> tuple[Complex, Float]:
        """Return data less sources (P, S, 8): (P, 2, K), and the sources' squared SNRs (P, S)."""
        particles, number, _ = sources.shape
        residual = np.empty((particles, 2, self.bins), dtype=np.complex128)
        residual[:] = data
        owner = np.repeat(np.arange(particles), number)
        snr2 = np.empty(particles * number)
        for rows, signals, first in self.kernel.signals(sources.reshape(-1, 8)):
            subtract(signals, first, owner[rows], self.first_bin, self._inverse, residual)
            if self.kernel is self.plain:
                squared_snr(signals, first, *self.snr_weights, snr2[rows])
        if self.kernel is not self.plain:
            return residual, self.snr(sources) ** 2
        return residual, snr2.reshape(particles, number)

    def basis(self, intrinsic: Float) -> Complex:
        """Return the whitened plus and cross responses in the band: (N, 4) -> (N, 2, 2, K).

        Args:
            intrinsic: f0, fdot, ra, dec.

        Returns:
            source, polarisation, channel, bin; zero in bins that a response does not reach.
        """
        out = np.empty((len(intrinsic), 2, 2, self.bins), dtype=np.complex128)
        for rows, bases, first in self.kernel.bases(intrinsic):
            place(bases, first, self.first_bin, self._inverse, out[rows])
        return out

    def project(
        self, residual: Complex, intrinsic: Float, ln_level: Float | None = None
    ) -> Projection:
        """Project data, of a particle each (P, 2, K) or of all (2, K), on one source: (P, 4).

        ln L at coefficients d is then ``log_likelihood_of(residual)`` plus
        ``2 Re(conj(d) . b) - conj(d) . G . d``.
        """
        residual = np.ascontiguousarray(residual).reshape(-1, 2, self.bins)
        weight = self._weight(ln_level)
        power = np.empty((len(residual), 2))
        powers(residual, power)
        number = len(intrinsic)
        product = np.empty((number, 2), dtype=np.complex128)
        gram = np.empty((number, 2, 2), dtype=np.complex128)
        for rows, bases, first in self.kernel.bases(intrinsic):
            project(
                bases, first, self.first_bin, self._inverse,
                residual[rows] if len(residual) > 1 else residual,
                weight[rows] if len(weight) > 1 else weight, product[rows], gram[rows],
            )  # fmt: skip
        total = np.broadcast_to((power * weight).sum(axis=1), number).copy()
        return Projection(total, product, gram, self.snr_gram(intrinsic))

    def project_joint(self, intrinsic: Float, ln_level: Float | None = None) -> JointProjection:
        """Project the band on all sources of each particle together: (P, S, 4).

        ln L at coefficients d (2 S) is ``log_likelihood_of(data)`` plus
        ``2 Re(conj(d) . b) - conj(d) . G . d``.
        """
        particles, number, _ = intrinsic.shape
        flat = intrinsic.reshape(-1, 4)
        return self.join(
            self.basis(flat).reshape(particles, number, 2, 2, self.bins),
            self.snr_gram(flat).reshape(particles, number, 2, 2), ln_level,
        )  # fmt: skip

    def join(
        self, bases: Complex, snr_gram: Complex, ln_level: Float | None = None
    ) -> JointProjection:
        """As :meth:`project_joint`, from bases that were kept: a move of one source makes one.

        Args:
            bases: (P, S, 2, 2, K) of :meth:`basis`.
            snr_gram: (P, S, 2, 2) of :meth:`snr_gram`.
            ln_level: (P, 2).
        """
        return joined(self.data, bases, snr_gram, self._weight(ln_level))

    def _weight(self, ln_level: Float | None) -> Float:
        """One over the level: (1 or P, 2)."""
        level = self.level if ln_level is None else self.level * np.exp(ln_level)
        return np.asarray(1.0 / level).reshape(-1, 2)

    def snr_gram(self, intrinsic: Float) -> Complex:
        """Return the Gram matrices (N, 2, 2) by which training defines the SNR.

        Over all bins of the response, inside the band or not, and the model's own density.
        """
        out = np.empty((len(intrinsic), 2, 2), dtype=np.complex128)
        for rows, bases, first in self.plain.bases(intrinsic):
            snr_grams(bases, first, *self.snr_weights, out[rows])
        return out

    def spectra(self, intrinsic: Float) -> tuple[Complex, NDArray[np.int64], Complex]:
        """Return responses (N, 2, 2, n), their first bins (N,), and :meth:`snr_gram`.

        The first divided by the modulation, not by ``sigma``. Where there is a modulation, the
        SNR's noise is that at each carrier: it differs by some 1e-4 over a response.
        """
        number, n = len(intrinsic), self.kernel.n
        out = np.empty((number, 2, 2, n), dtype=np.complex128)
        start = np.empty(number, dtype=np.int64)
        gram = np.empty((number, 2, 2), dtype=np.complex128)
        if isinstance(self.kernel, ModulatedKernel):
            base, values = self.snr_weights
            for rows, bases, first, grams in self.kernel.bases_and_grams(intrinsic):
                out[rows], start[rows] = bases, first
                at = np.clip(first + n // 2 - base, 0, values.shape[1] - 1)
                gram[rows] = np.einsum("ncij,cn->nij", grams, values[:, at])
            return out, start, gram
        for rows, bases, first in self.kernel.bases(intrinsic):
            out[rows], start[rows] = bases, first
            snr_grams(bases, first, *self.snr_weights, gram[rows])
        return out, start, gram

    def snr(self, sources: Float) -> Float:
        """Return the optimal SNR of each source as training defines it: (..., 8) -> (...)."""
        flat = sources.reshape(-1, 8)
        snr2 = np.empty(len(flat))
        for rows, signals, first in self.plain.signals(flat):
            squared_snr(signals, first, *self.snr_weights, snr2[rows])
        return np.sqrt(snr2).reshape(sources.shape[:-1])

    def log_prior(self, sources: Float) -> Float:
        """Return ln prior of P particles of S sources: (P, S, 8) -> (P,).

        The product of the sources' densities, per Hz, Hz/s, strain and radians, each normalised
        over f0 in the band's window of interest, psi in [0, pi) and phi0 in [0, 2 pi) (both images
        of the symmetry). For sources in the order of f0 multiply by S!; for psi folded to
        [0, pi/2) by 2 a source. -inf outside.
        """
        return self.prior.log_density(sources, self.snr(sources)).sum(axis=-1)

    def log_prior_and_likelihood(
        self, sources: Float, ln_level: Float | None = None
    ) -> tuple[Float, Float]:
        """Return (ln prior, ln L) of particles (P, S, 8), each (P,); the responses made once."""
        residual, snr2 = self._less(self.data, sources)
        prior = self.prior.log_density(sources, np.sqrt(snr2)).sum(axis=-1)
        return prior, self.log_likelihood_of(residual, ln_level)

    def log_level_prior(self, ln_level: Float) -> Float:
        """Return ln density of the levels' logarithms: (P, 2) -> (P,); Gaussian, LEVEL_SIGMA."""
        scaled = ln_level / LEVEL_SIGMA
        return -np.asarray(
            (0.5 * scaled**2 + np.log(LEVEL_SIGMA * np.sqrt(2.0 * np.pi))).sum(axis=-1)
        )

    def from_unit(self, unit: Float) -> Float:
        """Map the unit cube to one source's prior: (N, 8) -> (N, 8); psi in [0, pi).

        Columns: f0, fdot, SNR, ra, sin dec, psi, cos iota, phi0.
        """
        sources, snr = self.prior.from_unit(unit)
        sources[:, AMPLITUDE] = 1.0
        sources[:, AMPLITUDE] = snr / self.snr(sources)
        return sources

    def draw_prior(self, rng: np.random.Generator, number: int) -> Float:
        """Draw one source ``number`` times from the prior: (number, 8)."""
        return self.from_unit(rng.random((number, 8)))


def bin_sigma(sigma: Float, density: Float) -> Float:
    """Return the whitening's divisor per bin: (2, K).

    Args:
        sigma: (2,) that at the band's centre, as :class:`slotflow.whitening.WhiteBand` has it.
        density: (2 or 3, K) by which the band was whitened.
    """
    shape = density[:2] / density[:2, density.shape[1] // 2, None]
    return np.asarray(sigma[:, None] * np.sqrt(shape))


def training_sigma(
    observation: ObservationSettings, first_bin: int, bins: int, prior: PriorSettings
) -> Float:
    """Return the noise per bin by which training defines the SNR: (2, bins)."""
    frequency = np.maximum(first_bin + np.arange(bins), 1) / observation.duration
    scale = 0.5 * observation.duration * window_power(observation.tukey)
    return np.asarray(np.sqrt(snr_density(frequency, observation, prior) * scale))


def instrument_sigma(frequency: Float, observation: ObservationSettings) -> Float:
    """Return the instrument's share of the noise per bin, as :func:`training_sigma`: (2, n).

    Args:
        frequency: (n,) positive frequencies, Hz.
        observation: of the model.
    """
    model = model_psd(frequency, observation)
    density = standard_psd(frequency, observation) * (model.instrument / model.total)
    scale = 0.5 * observation.duration * window_power(observation.tukey)
    return np.asarray(np.sqrt(density[:2] * scale))
