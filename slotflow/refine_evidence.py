"""Is there one source more? The evidence for it, over a cloud that has the others.

Given S sources, the evidence for S + 1 is an average over their posterior and over the place of
the new one, where its amplitude and phase are integrated out in closed form and psi and cos iota
drawn from their prior. Places are drawn where the F-statistic of what is left of the band is
large, and some from the prior everywhere, so that weights stay bounded.

Sources carry no order, so that any of S + 1 may be the new one: a factor of S + 1.
"""

from typing import Final

import numpy as np
import scipy.special
from numpy.typing import NDArray

from slotflow.amplitudes import log_marginal, reduce
from slotflow.importance import MAX_K, weigh
from slotflow.refine_band import BandProblem
from slotflow.refine_space import BIN, DRIFT, QUARTER, RA, SIN_DEC, TURN
from slotflow.refined import Evidence
from slotflow.templates import STEPS, TemplateBank

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

DRAWS: Final = 4000  # places
ANGLES: Final = 6  # psi and cos iota at each
EVERYWHERE: Final = 0.2  # share of the prior among the places
SHARPNESS: Final = 0.9  # power of the F-statistic's likelihood by which cells are chosen


class MapPlaces:
    """Places by the F-statistic of a residual: cells of bin and sky, smoothed over the cell.

    Args:
        residual: (2, K) to unit noise.
        bank: of templates at this frequency.
        window: first and last bin of the prior.
    """

    def __init__(self, residual: Complex, bank: TemplateBank, window: tuple[float, float]) -> None:
        bins = residual.shape[1]
        statistic = np.empty((bins, STEPS, len(bank.sky)), dtype=np.float32)
        bank.correlate(residual.astype(np.complex64), 0, bins, statistic)
        flat = SHARPNESS * statistic.reshape(bins * STEPS, -1).astype(np.float64)
        place = np.arange(bins * STEPS) / STEPS
        half = 0.5 / STEPS
        flat[(place + half < window[0]) | (place - half > window[1])] = -np.inf
        self.ln_cell = flat - scipy.special.logsumexp(flat)
        self.window, self.highest = window, float(statistic.max())
        ra, dec = bank.sky.T
        self.directions = _directions(ra, np.sin(dec))
        points = len(ra) // len(np.unique(bank.drift))
        self.width = 2.0 / float(np.sqrt(points))  # rad: of the cap that is a point's share
        self._ln_cap = -np.log(TURN * self.width**2) - np.log(-np.expm1(-2.0 / self.width**2))

    def draw(self, number: int, rng: np.random.Generator) -> tuple[Float, Float, Float]:
        """Return bins, ra and sin dec, (number,) each."""
        everywhere = rng.random(number) < EVERYWHERE
        cumulative = np.cumsum(np.exp(self.ln_cell))
        flat = np.searchsorted(cumulative, rng.random(number) * cumulative[-1])
        row, point = np.unravel_index(np.minimum(flat, cumulative.size - 1), self.ln_cell.shape)
        bins = (row + rng.uniform(-0.5, 0.5, number)) / STEPS
        bins = np.where(everywhere, rng.uniform(*self.window, number), bins)
        # a Fisher distribution about the point, by inversion
        kappa = 1.0 / self.width**2
        cosine = 1.0 + np.log1p(rng.random(number) * np.expm1(-2.0 * kappa)) / kappa
        cosine = np.where(everywhere, rng.uniform(-1.0, 1.0, number), cosine)
        ra, sin_dec = _around(self.directions[point], cosine, rng.uniform(0.0, TURN, number))
        return bins, ra, sin_dec

    def log_density(self, bins: Float, ra: Float, sin_dec: Float) -> Float:
        """Return ln density over bin, ra and sin dec, (n,)."""
        row = np.clip(np.rint(bins * STEPS).astype(np.int64), 0, len(self.ln_cell) - 1)
        cosine = _directions(ra, sin_dec) @ self.directions.T
        cap = (cosine - 1.0) / self.width**2 + self._ln_cap
        near = scipy.special.logsumexp(self.ln_cell[row] + cap, axis=1) + np.log(STEPS)
        flat = -np.log((self.window[1] - self.window[0]) * 2.0 * TURN)
        return np.asarray(np.logaddexp(np.log(EVERYWHERE) + flat, np.log1p(-EVERYWHERE) + near))


def one_more(
    problem: BandProblem, residuals: Complex, bank: TemplateBank, rng: np.random.Generator,
    draws: int = DRAWS,
) -> tuple[Evidence, bool]:  # fmt: skip
    """Return ln B of one source more than a problem has, and whether it can be relied on.

    Args:
        problem: of S sources, 0 too.
        residuals: (N, 2, K) of draws of their posterior, to unit noise; for S = 0 the band.
        bank: of templates at this frequency.
        rng: all that is random comes from it.
        draws: places.
    """
    space = problem.space
    window = float(space.low[BIN]), float(space.high[BIN])
    places = MapPlaces(residuals.mean(axis=0), bank, window)
    bins, ra, sin_dec = places.draw(draws, rng)
    x = np.zeros((draws, 8))
    x[:, BIN], x[:, RA], x[:, SIN_DEC] = bins, ra, sin_dec
    x[:, DRIFT] = rng.uniform(space.low[DRIFT], space.high[DRIFT], draws)
    flat = -np.log((window[1] - window[0]) * 2.0 * TURN)
    ln_w = flat - places.log_density(bins, ra, sin_dec)
    inside = (bins >= window[0]) & (bins <= window[1])
    x[:, BIN] = np.clip(bins, *window)
    one = problem.place(x, residuals, rng.integers(len(residuals), size=draws))
    parts = []
    for _ in range(ANGLES):
        psi, cosine = rng.uniform(0.0, QUARTER, draws), rng.uniform(-1.0, 1.0, draws)
        reduced = reduce(one.product, one.gram, one.snr_gram, psi, np.arccos(cosine))
        parts.append(log_marginal(reduced, space.snr))
    ln_w += scipy.special.logsumexp(parts, axis=0) - np.log(ANGLES)
    weighted = weigh(np.where(inside, ln_w, -np.inf))
    value = weighted.ln_z + float(np.log(problem.number + 1.0))
    return Evidence(value, weighted.ln_z_error), bool(weighted.k <= MAX_K)


def _directions(ra: Float, sin_dec: Float) -> Float:
    cos_dec = np.sqrt(np.maximum(1.0 - sin_dec**2, 0.0))
    return np.stack([cos_dec * np.cos(ra), cos_dec * np.sin(ra), sin_dec], axis=-1)


def _around(centre: Float, cosine: Float, angle: Float) -> tuple[Float, Float]:
    """Return ra and sin dec of directions at an angle's cosine from centres (n, 3)."""
    other = np.where(np.abs(centre[:, 2:]) < 0.9, [[0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0]])
    u = np.cross(centre, other)
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    v = np.cross(centre, u)
    sine = np.sqrt(np.maximum(1.0 - cosine**2, 0.0))[:, None]
    turned = np.cos(angle)[:, None] * u + np.sin(angle)[:, None] * v
    p = cosine[:, None] * centre + sine * turned
    return np.mod(np.arctan2(p[:, 1], p[:, 0]), TURN), np.clip(p[:, 2], -1.0, 1.0)
