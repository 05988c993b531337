"""The component search: a band explained by a few binaries, loudest first.

Take the largest F-statistic over bins and sky (:mod:`slotflow.templates`), refine
frequency, sky and fdot with the true response (Levenberg-Marquardt with the amplitudes
projected out; fdot under a Gaussian of its prior's mean and width), subtract the best fit,
repeat until 2F falls below a threshold; then refit every component against the residual of
the others. Where sources crowd this is done in rounds: what was fitted to two sources at once
gives way to each. Nothing here is learned. The components are the network's tokens.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slotflow.bands import level as noise_power
from slotflow.config import ComponentSettings
from slotflow.fit import LocalFit
from slotflow.response import Complex, Float, ResponseGrid
from slotflow.starts import SECOND_MODE_ANGLE, other_mode, promising, separation, starts
from slotflow.templates import STEPS, BankSet, Complex64, TemplateBank

#: Part of the cached searches' names and of every model: change it with the search's result.
SEARCH_VERSION = "2"
SWEEPS = 2  # joint refits of all components at the end
LEVEL_HEIGHT = 60.0  # 2F above which a component counts as a source for the noise level
CROWDED_LEVEL_HEIGHT = 30.0  # likewise, in bands where hardly a bin is without sources
CROWDED_QUANTILE = 0.3  # of the residual's power, which then tells the level in place of the median
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


@dataclass
class _State:
    """One band during the search.

    ``residual`` (2, K) by the band's first level, which ``ratio`` relates to the noise;
    ``statistic`` (K, STEPS, G) of it and its largest values ``peaks`` (K, STEPS).
    """

    residual: Complex64
    bank: TemplateBank
    first_bin: int
    sigma: Float
    settled: bool
    ratio: float = 1.0
    found: list[_Found] = field(default_factory=list)
    statistic: NDArray[np.float32] = field(init=False)
    peaks: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        bins = self.residual.shape[1]
        self.statistic = np.empty((bins, STEPS, len(self.bank.sky)), dtype=np.float32)
        self.look()

    def look(self) -> None:
        """Compute the statistic of the whole band."""
        self.bank.correlate(self.residual, 0, self.residual.shape[1], self.statistic)
        self.peaks = self.statistic.max(axis=2)

    def look_around(self, one: _Found, reach: int) -> None:
        """Compute the statistic where a component that was taken out is felt."""
        row, bins = one.centre - self.first_bin, self.residual.shape[1]
        low, high = max(row - reach, 0), min(row + reach + 1, bins)
        self.bank.correlate(self.residual, low, high, self.statistic)
        self.peaks[low:high] = self.statistic[low:high].max(axis=2)

    def add(self, one: _Found, sign: float) -> None:
        """Add a component to the residual, or take it out."""
        n = one.model.shape[1]
        start = one.centre - n // 2 - self.first_bin
        low, high = max(start, 0), min(start + n, self.residual.shape[1])
        if high > low:
            self.residual[:, low:high] += (sign * one.model[:, low - start : high - start]).astype(
                np.complex64
            )


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
        level = noise_power(band[:2]) if known_level is None else known_level
        residual = (band[:2] / np.sqrt(level)[:, None]).astype(np.complex64)
        sigma = sigma * np.sqrt(level)
        bank = self.banks.at(first_bin + band.shape[1] // 2)
        state = _State(residual, bank, first_bin, sigma, known_level is not None)
        for again in range(self.settings.rounds):
            if again:
                self._refit_all(state, last=False)
                self._put_back_faint(state)
                state.look()
                # what stood in the way of the level may have gone
                state.settled &= not self.settings.crowded or known_level is not None
            if not self._take_out(state):
                break
        for sweep in range(SWEEPS):
            self._refit_all(state, last=sweep == SWEEPS - 1)
        ratio = state.ratio
        if not state.settled or (self.settings.crowded and known_level is None):
            ratio = self._residual_level(state)
        components = self._records(state.found, residual, first_bin, ratio)
        residual *= np.sqrt(level).astype(np.float32)[:, None]
        return ComponentSet(components, level * ratio, residual)

    def _take_out(self, state: _State) -> int:
        """Find and subtract components, loudest first, to the threshold; return how many."""
        before = len(state.found)
        clear = CROWDED_LEVEL_HEIGHT if self.settings.crowded else LEVEL_HEIGHT
        while len(state.found) < self.settings.max_components:
            position = int(np.argmax(state.peaks))
            height = 2.0 * float(state.peaks.flat[position])
            if not state.settled and height < clear * state.ratio:
                # only clear sources move the level: fits to noise would lower it without end
                state.ratio = self._residual_level(state)
                state.settled = not self.settings.crowded or height < clear * state.ratio
            if height < self.settings.threshold * state.ratio:
                break
            one = self._refine_peak(position, state)
            state.found.append(one)
            state.add(one, -1.0)
            state.look_around(one, REACH + self.settings.taps // 2)
            # a peak that its own subtraction did not lower would be found for ever
            row = position // STEPS
            near = abs(one.centre - state.first_bin - row) <= REACH + self.settings.taps // 2
            if near and state.peaks.flat[position] > 0.7 * one.f:
                state.peaks[row] = 0.0
        return len(state.found) - before

    def _residual_level(self, state: _State) -> float:
        """Return the noise power per bin of what is left.

        Where sources crowd, the components have taken a good part of the band's real numbers
        with them, eight each.
        """
        if not self.settings.crowded:
            return float(np.mean(noise_power(state.residual)))
        quiet = float(np.quantile(np.abs(state.residual) ** 2, CROWDED_QUANTILE))
        power = quiet / -math.log1p(-CROWDED_QUANTILE)
        taken = 2.0 * len(state.found) / float(state.residual.shape[1])
        return power / max(1.0 - taken, 0.4)

    def _put_back_faint(self, state: _State) -> None:
        """Give up components that the others' refits have left with little."""
        least = 0.5 * self.settings.threshold * state.ratio
        for one in state.found:
            if one.f < least:
                state.add(one, +1.0)
        state.found = [one for one in state.found if one.f >= least]

    def _refine_peak(self, position: int, state: _State) -> _Found:
        row, step = divmod(position, STEPS)
        bank, sigma = state.bank, state.sigma
        centre = state.first_bin + row
        fit = self.coarse
        data = fit.data(state.residual, centre, state.first_bin)
        scores = state.statistic[row, step].copy()
        places: list[Float] = []
        for _ in range(2):
            index = int(np.argmax(scores))
            places.append(np.array([centre + step / STEPS, *bank.sky[index], bank.drift[index]]))
            scores[separation(bank.sky, bank.sky[index]) < SECOND_MODE_ANGLE] = 0.0
        if self.settings.starts:
            near = starts(state.statistic, state.peaks, bank, position, self.settings.starts)
            offset = np.array([float(state.first_bin), 0.0, 0.0, 0.0])
            places = promising(fit, [*places, *(offset + x for x in near)], centre, data, sigma)
        best = [(*fit.run(x, centre, data, sigma, 2.0), x) for x in places]
        best.sort(key=lambda item: -item[0])
        f, coefficients, hessian, x = best[0]
        second = best[1]
        if self.settings.starts:
            apart = other_mode([item[3] for item in best])
            second = next((item for item in best if item[3] is apart), second)
        return _Found(
            x, centre, coefficients, hessian, f, fit.model(x, centre, coefficients, sigma),
            second[3][1:3], second[0],
        )  # fmt: skip

    def _refit_all(self, state: _State, last: bool) -> None:
        """Refine each component against the band less all the others."""
        for one in state.found:
            fit = self.fine if last and 2.0 * one.f > FINE_HEIGHT else self.coarse
            state.add(one, +1.0)
            one.centre = int(np.rint(one.x[0]))
            data = fit.data(state.residual, one.centre, state.first_bin)
            second_loss = one.f - one.second_f
            one.f, one.coefficients, one.hessian = fit.run(
                one.x, one.centre, data, state.sigma, 1.0
            )
            one.second_f = one.f - second_loss
            one.model = fit.model(one.x, one.centre, one.coefficients, state.sigma)
            state.add(one, -1.0)

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


def _covariance(hessian: Float) -> Float:
    """Covariance of (bin, east, north, fdot T^2) from the half Hessian, held to sensible widths."""
    prior = np.diag([1.0 / 0.5**2, 1.0, 1.0, 0.0])  # half a bin, one radian: keeps it invertible
    return np.asarray(np.linalg.inv(2.0 * hessian + prior))
