"""The component search: a band explained by a few binaries, loudest first.

Take the largest F-statistic over bins and sky (:mod:`slotflow.templates`), refine
frequency, sky and fdot with the true response (Levenberg-Marquardt with the amplitudes
projected out; fdot under a Gaussian of its prior's mean and width), subtract the best fit,
repeat until 2F falls below a threshold; then refit every component against the residual of
the others. Nothing here is learned. The components are the network's tokens.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slotflow.bands import level as noise_power
from slotflow.config import ComponentSettings
from slotflow.fit import LocalFit
from slotflow.response import Complex, Float, ResponseGrid
from slotflow.templates import SEARCH_FDOT_T2, STEPS, BankSet, Complex64

#: Part of the cached searches' names and of every model: change it with the search's result.
SEARCH_VERSION = "2"
SWEEPS = 2  # joint refits of all components at the end
SECOND_MODE_ANGLE = np.deg2rad(25.0)  # a second sky maximum lies at least this far away
LEVEL_HEIGHT = 60.0  # 2F above which a component counts as a source for the noise level
REACH = 12  # bins from its carrier over which a subtracted component is felt
FINE_HEIGHT = 400.0  # 2F above which the last refit uses every slow sample: 64 of them err by
# 1e-2 of the signal, which a loud source's amplitude shows
PATCH = 8  # residual power is reported over 2 PATCH + 1 bins

#: Fields of one component: see :data:`COMPONENT_DTYPE`'s comments.
COMPONENT_DTYPE = np.dtype(
    [
        ("bin", "f8"),  # frequency in bins from the band's first bin
        ("ra", "f8"),
        ("dec", "f8"),
        ("fdot_t2", "f8"),  # fdot T^2
        ("plus", "c16"),  # exp(-i phi0) d_plus, strain
        ("cross", "c16"),
        ("f_statistic", "f8"),  # F in units of the noise level
        ("covariance", "f8", (4, 4)),  # of (bin, cos dec * ra, dec, fdot T^2), from the Hessian
        ("second_ra", "f8"),  # the best other sky mode
        ("second_dec", "f8"),
        ("second_loss", "f8"),  # F lost there, in units of the noise level
        ("patch", "f4", (2 * PATCH + 1,)),  # mean A, E power of the residual around it
    ]
)


@dataclass(frozen=True)
class ComponentSet:
    """What a band was found to hold.

    Attributes:
        components: (C,) of :data:`COMPONENT_DTYPE`, in the order found.
        level: (2,) noise power per bin of the residual in A and E, relative to the PSD
            by which the band was whitened.
        residual: (2, K) complex64, the whitened band less all components.
    """

    components: NDArray[np.void]
    level: Float
    residual: Complex64


@dataclass
class _Found:
    """One component during the search: x = (bin, ra, dec, fdot T^2) in absolute bins."""

    x: Float
    centre: int
    coefficients: Complex
    hessian: Float
    f: float
    model: Complex
    second: Float
    second_f: float


class ComponentSearch:
    """Finds the components of bands of one observation.

    Args:
        grid: the observation's slow grid (``settings.slow_samples`` samples); the search
            takes every other sample, the last refit of loud components all.
        settings: the search's settings.
    """

    def __init__(self, grid: ResponseGrid, settings: ComponentSettings) -> None:
        if grid.n != settings.slow_samples:
            raise ValueError(f"expected {settings.slow_samples} slow samples; got {grid.n}")
        self.settings = settings
        coarse = grid.thinned(2)
        self.banks = BankSet(coarse, settings)
        self.coarse, self.fine = LocalFit(coarse), LocalFit(grid)

    def __call__(
        self, band: Complex64, first_bin: int, sigma: Float, known_level: Float | None = None
    ) -> ComponentSet:
        """Search one band.

        Args:
            band: (2 or 3, K) whitened A, E (, T); T is not used.
            first_bin: Fourier bin of the band's first column.
            sigma: (2,) the whitening's divisor at the band's centre in A and E, i.e. the
                noise per bin in the data's own unit, sqrt(S T mean(w^2) / 2).
            known_level: (2,) noise power per bin of A and E relative to the whitening, where
                it is to be believed instead of estimated from the band.

        Returns:
            The components; none at all is an empty set, not an error.
        """
        bins = band.shape[1]
        level = noise_power(band[:2]) if known_level is None else known_level
        residual = (band[:2] / np.sqrt(level)[:, None]).astype(np.complex64)
        sigma = sigma * np.sqrt(level)
        bank = self.banks.at(first_bin + bins // 2)
        statistic = np.empty((bins, STEPS, len(bank.sky)), dtype=np.float32)
        bank.correlate(residual, 0, bins, statistic)
        peaks = statistic.max(axis=2)
        found: list[_Found] = []
        ratio, settled = 1.0, known_level is not None
        while len(found) < self.settings.max_components:
            position = int(np.argmax(peaks))
            height = 2.0 * float(peaks.flat[position])
            if not settled and height < LEVEL_HEIGHT * ratio:
                # only clear sources move the level: fits to noise would lower it without end
                ratio, settled = float(np.mean(noise_power(residual))), True
            if height < self.settings.threshold * ratio:
                break
            one = self._refine_peak(position, statistic, bank.sky, residual, first_bin, sigma)
            found.append(one)
            self._add(residual, one, first_bin, -1.0)
            low, high = self._touched(one, first_bin, bins)
            bank.correlate(residual, low, high, statistic)
            peaks[low:high] = statistic[low:high].max(axis=2)
            # a peak that its own subtraction did not lower would be found for ever
            row = position // STEPS
            if peaks.flat[position] > 0.7 * one.f and low <= row < high:
                peaks[row] = 0.0
        for sweep in range(SWEEPS):
            for one in found:
                fine = sweep == SWEEPS - 1 and 2.0 * one.f > FINE_HEIGHT
                fit = self.fine if fine else self.coarse
                self._refit(one, fit, residual, first_bin, sigma)
        if not settled:
            ratio = float(np.mean(noise_power(residual)))
        components = self._records(found, residual, first_bin, ratio)
        residual *= np.sqrt(level).astype(np.float32)[:, None]
        return ComponentSet(components, level * ratio, residual)

    def _refine_peak(
        self, position: int, statistic: NDArray[np.float32], sky: Float, residual: Complex64,
        first_bin: int, sigma: Float,
    ) -> _Found:  # fmt: skip
        row, step = divmod(position, STEPS)
        centre = first_bin + row
        fit = self.coarse
        data = fit.data(residual, centre, first_bin)
        scores = statistic[row, step].copy()
        best: list[tuple[float, Float, Complex, Float]] = []
        for _ in range(2):
            index = int(np.argmax(scores))
            x = np.array([centre + step / STEPS, *sky[index], SEARCH_FDOT_T2])
            f, coefficients, hessian = fit.run(x, centre, data, sigma, 2.0)
            best.append((f, x, coefficients, hessian))
            scores[_separation(sky, sky[index]) < SECOND_MODE_ANGLE] = 0.0
        best.sort(key=lambda item: -item[0])
        f, x, coefficients, hessian = best[0]
        return _Found(
            x, centre, coefficients, hessian, f, fit.model(x, centre, coefficients, sigma),
            best[1][1][1:3], best[1][0],
        )  # fmt: skip

    def _add(self, residual: Complex64, one: _Found, first_bin: int, sign: float) -> None:
        n = one.model.shape[1]
        start = one.centre - n // 2 - first_bin
        low, high = max(start, 0), min(start + n, residual.shape[1])
        if high > low:
            residual[:, low:high] += (sign * one.model[:, low - start : high - start]).astype(
                np.complex64
            )

    def _touched(self, one: _Found, first_bin: int, bins: int) -> tuple[int, int]:
        reach = REACH + self.settings.taps // 2
        row = one.centre - first_bin
        return max(row - reach, 0), min(row + reach + 1, bins)

    def _refit(
        self, one: _Found, fit: LocalFit, residual: Complex64, first_bin: int, sigma: Float
    ) -> None:
        """Refine one component against the band less all the others."""
        self._add(residual, one, first_bin, +1.0)
        one.centre = int(np.rint(one.x[0]))
        data = fit.data(residual, one.centre, first_bin)
        second_loss = one.f - one.second_f
        one.f, one.coefficients, one.hessian = fit.run(one.x, one.centre, data, sigma, 1.0)
        one.second_f = one.f - second_loss
        one.model = fit.model(one.x, one.centre, one.coefficients, sigma)
        self._add(residual, one, first_bin, -1.0)

    def _records(
        self, found: list[_Found], residual: Complex64, first_bin: int, level: float
    ) -> NDArray[np.void]:
        records = np.zeros(len(found), dtype=COMPONENT_DTYPE)
        power = np.mean(np.abs(residual) ** 2, axis=0) / level
        padded = np.pad(power, PATCH)
        for record, one in zip(records, found, strict=True):
            row = int(np.clip(round(one.x[0]) - first_bin, 0, residual.shape[1] - 1))
            record["bin"] = one.x[0] - first_bin
            record["ra"], record["dec"] = one.x[1], one.x[2]
            record["fdot_t2"] = one.x[3]
            record["plus"], record["cross"] = one.coefficients
            record["f_statistic"] = one.f / level
            record["covariance"] = _covariance(one.hessian / level)
            record["second_ra"], record["second_dec"] = one.second
            record["second_loss"] = max(one.f - one.second_f, 0.0) / level
            record["patch"] = padded[row : row + 2 * PATCH + 1]
        return records


def _separation(sky: Float, point: Float) -> Float:
    cosine = np.sin(sky[:, 1]) * np.sin(point[1]) + np.cos(sky[:, 1]) * np.cos(point[1]) * np.cos(
        sky[:, 0] - point[0]
    )
    return np.asarray(np.arccos(np.clip(cosine, -1.0, 1.0)))


def _covariance(hessian: Float) -> Float:
    """Covariance of (bin, east, north, fdot T^2) from the half Hessian, held to sensible widths."""
    prior = np.diag([1.0 / 0.5**2, 1.0, 1.0, 0.0])  # half a bin, one radian: keeps it invertible
    return np.asarray(np.linalg.inv(2.0 * hessian + prior))
