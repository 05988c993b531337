"""The band's likelihood and prior in JAX: differentiable, and mapped over particles by vmap.

The same numbers as :class:`slotflow.likelihood.BandLikelihood`, to 1e-10. A processor evaluates the
compiled one some ten times as fast; this one is for gradients and for GPUs.

JAX is imported when a function is first called. Its 64-bit mode is not switched on here, where
that would change what other code in the process computes: everything, compilation included, is
to be called within :func:`x64`, and 32-bit numbers are refused.
"""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from slotflow.exact_modulation import ModulatedKernel
from slotflow.likelihood import LEVEL_SIGMA, BandLikelihood
from slotflow.parameters import F0
from slotflow.response import C

# links 12, 23, 31, 13, 32, 21: the arm, the receiving spacecraft, the arm's sign
_ARM = np.array([0, 1, 2, 2, 1, 0])
_CRAFT = np.array([0, 1, 2, 0, 2, 1])
_SIGN = np.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])[:, None]

_WIDENING = 3e-3  # Hz, as in slotflow.parameters.fdot_widening, which is NumPy's


def x64() -> AbstractContextManager[Any]:
    """Return a context in which JAX computes in 64 bits, in this thread."""
    import jax

    context: AbstractContextManager[Any] = jax.enable_x64(True)
    return context


class BandJax:
    """ln L and ln prior of one band as pure functions of JAX arrays.

    Args:
        band: the same in NumPy; its noise, responses and prior are taken over.
    """

    def __init__(self, band: BandLikelihood) -> None:
        self.band = band
        grid = band.kernel.grid
        n = grid.n
        self._n, self._times = n, grid.times
        self._places = grid.positions / C
        self._arms = (grid.positions - np.roll(grid.positions, -1, axis=0)) / grid.arm_length
        sign = np.where(np.arange(n) % 2, -1.0, 1.0)  # the carrier to bin n / 2
        self._window = grid.window * sign * (0.5 * grid.duration / n)
        self._star = 2.0 * np.pi * grid.arm_length / C
        kernel = band.kernel
        self._matrix = kernel.matrix if isinstance(kernel, ModulatedKernel) else None

    def log_likelihood(self, sources: Any, ln_level: Any = None) -> Any:
        """Return ln L of sources (S, 8), a scalar; ``ln_level`` (2,) over the band's level.

        Raises:
            TypeError: numbers that are not of 64 bits.
        """
        return self.log_prior_and_likelihood(sources, ln_level)[1]

    def log_prior(self, sources: Any) -> Any:
        """Return ln prior of sources (S, 8), a scalar; as the band's ``log_prior``."""
        return self.log_prior_and_likelihood(sources)[0]

    def log_prior_and_likelihood(self, sources: Any, ln_level: Any = None) -> tuple[Any, Any]:
        """Return (ln prior, ln L) of sources (S, 8); the responses made once.

        The prior of ``ln_level``, where given, is part of the first.
        """
        import jax
        import jax.numpy as jnp

        band = self.band
        if np.dtype(sources.dtype) != np.float64:
            raise TypeError("expected numbers of 64 bits: call within likelihood_jax.x64()")
        level, prior = jnp.asarray(band.level), jnp.zeros(())
        if ln_level is not None:
            level = level * jnp.exp(ln_level)
            scaled = ln_level / LEVEL_SIGMA
            prior = -(0.5 * scaled**2 + np.log(LEVEL_SIGMA * np.sqrt(2.0 * np.pi))).sum()
        signals, snr = jax.vmap(self.signal)(sources)
        residual = band.data - signals.sum(axis=0)
        prior = prior + jax.vmap(self._log_density)(sources, snr).sum()
        power = (residual.real**2 + residual.imag**2).sum(axis=1)
        terms = power / level + band.bins * jnp.log(jnp.pi * level)
        return prior, band.ln_volume - terms.sum()

    def signal(self, source: Any) -> tuple[Any, Any]:
        """Return a source's (8,) whitened signal in the band (2, K), and its SNR."""
        import jax.numpy as jnp

        band = self.band
        centre = jnp.rint(source[F0] * band.duration)
        slow = self._slow(source, centre)
        plain = jnp.fft.fft(slow, axis=-1)
        spectrum = plain
        if self._matrix is not None:
            spectrum = jnp.fft.fft(jnp.einsum("tij,jt->it", self._matrix, slow), axis=-1)
        first = centre.astype(jnp.int64) - self._n // 2
        at = jnp.arange(band.bins) + (band.first_bin - first)
        inside = (at >= 0) & (at < self._n)
        cut = jnp.where(inside, spectrum[:, jnp.clip(at, 0, self._n - 1)], 0.0)
        inverse2 = jnp.asarray(band.snr_weights.values)
        place = first - band.snr_weights.first + jnp.arange(self._n)
        weight = inverse2[:, jnp.clip(place, 0, inverse2.shape[1] - 1)]
        snr = jnp.sqrt(2.0 * ((plain.real**2 + plain.imag**2) * weight).sum())
        return cut / band.sigma, snr

    def _slow(self, source: Any, centre: Any) -> Any:
        """Return the windowed slow response in A and E: (2, n)."""
        import jax.numpy as jnp

        f0, fdot, amplitude, ra, dec, psi, iota, phi0 = source
        sr, cr, sd, cd = jnp.sin(ra), jnp.cos(ra), jnp.sin(dec), jnp.cos(dec)
        k = jnp.stack([-cd * cr, -cd * sr, -sd])
        u, v = jnp.stack([sr, -cr, jnp.zeros(())]), jnp.stack([-sd * cr, -sd * sr, cd])
        times = self._times
        delay = jnp.einsum("i,sit->st", k, self._places)
        retarded = times - delay
        ratio = (f0 + fdot * retarded) * self._star
        om = 2.0 * jnp.pi * f0
        carried = (om - 2.0 * jnp.pi * centre / self.band.duration) * times
        phase = carried + jnp.pi * fdot * retarded**2 - om * delay
        along, ur, vr = (jnp.einsum("i,sit->st", w, self._arms) for w in (k, u, v))
        plus, cross = _coefficients(amplitude, psi, iota, phi0)
        strain = plus * (ur**2 - vr**2) + cross * (2.0 * ur * vr)
        alpha = 0.5 * ratio[_CRAFT] * (1.0 - _SIGN * along[_ARM])
        size = -0.5j * ratio[_CRAFT] * jnp.sinc(alpha / jnp.pi)
        link = size * jnp.exp(1j * (phase[_CRAFT] - alpha)) * strain[_ARM]
        own = (f0 + fdot * times) * self._star
        back = jnp.exp(-1j * own)
        x = link[5] - link[2] + (link[0] - link[3]) * back
        y = link[4] - link[0] + (link[1] - link[5]) * back
        z = link[3] - link[1] + (link[2] - link[4]) * back
        factor = -2.0j * jnp.sin(own) * back * self._window
        return factor * jnp.stack([(z - x) / np.sqrt(2.0), (x - 2.0 * y + z) / np.sqrt(6.0)])

    def _log_density(self, source: Any, snr: Any) -> Any:
        """Return the density of :class:`slotflow.source_prior.SourcePrior`."""
        import jax.numpy as jnp

        f0, fdot, amplitude, _, dec, _, iota, _ = source
        prior = self.band.prior
        settings, duration = prior.settings, self.band.duration
        low, high = prior.f0
        scale = jnp.maximum(1.0, f0 / _WIDENING) ** (11.0 / 3.0) / duration**2
        least, most = settings.fdot_t2_min, settings.fdot_t2_max
        inside = (f0 >= low) & (f0 <= high) & (fdot >= least * scale) & (fdot <= most * scale)
        inside &= (snr >= prior.snr[0]) & (snr <= prior.snr[1])
        inside &= (jnp.abs(dec) <= 0.5 * jnp.pi) & (iota >= 0.0) & (iota <= jnp.pi)
        inside &= amplitude > 0.0
        volume = (high - low) * (most - least) * scale * prior.ln_snr_range * amplitude
        value = jnp.log(jnp.cos(dec) * jnp.sin(iota) / (16.0 * np.pi**3 * volume))
        return jnp.where(inside, value, -jnp.inf)


def _coefficients(amplitude: Any, psi: Any, iota: Any, phi0: Any) -> tuple[Any, Any]:
    import jax.numpy as jnp

    plus, cross = -amplitude * (1.0 + jnp.cos(iota) ** 2), -2.0 * amplitude * jnp.cos(iota)
    c, s, turn = jnp.cos(2.0 * psi), jnp.sin(2.0 * psi), jnp.exp(-1j * phi0)
    return turn * (plus * c + 1j * cross * s), turn * (plus * s - 1j * cross * c)
