"""The scores of the prior itself, on the same true sources."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.config import PriorSettings
from slotflow.labels import window_edges
from slotflow.parameters import FDOT_T2_PRIOR, LN_AMPLITUDE_RANGE
from slotflow.report.outcome import NAMES, PERIODS, Bands, Sources
from slotflow.scores import crps_columns, energy_score

Float = NDArray[np.float64]

DRAWS: Final = 256  # of the prior, for each source
_NEAREST: Final = 256  # sources whose amplitudes stand for those of their frequency
_CHUNK: Final = 512  # sources at a time
_FDOT, _LN_AMPLITUDE, _RA, _SIN_DEC = (
    NAMES.index(name) for name in ("fdot", "ln_amplitude", "ra", "sin_dec")
)


def prior_scores(
    sources: Sources, bands: Bands, prior: PriorSettings, duration: float,
    generator: np.random.Generator,
) -> tuple[Float, Float]:  # fmt: skip
    """Return the prior's CRPS (n, 8) and energy score (n,) on every source.

    The prior is that of a source of its band: f0 in the band's window, fdot in its range, angles
    uniform; the amplitude is that of a source nearby in frequency brought to an SNR by the prior's
    law, as simulated, and so is the sky's place where it is not isotropic.

    Args:
        sources: the true ones.
        bands: their bands.
        prior: that the bands were drawn from.
        duration: observation time T, s.
        generator: of the prior's draws.
    """
    crps, energy = np.empty_like(sources.crps), np.empty_like(sources.energy)
    order = np.argsort(sources.f0, kind="stable")
    for start in range(0, len(order), _CHUNK):
        chosen = order[start : start + _CHUNK]
        draws = _draws(sources, order, start, bands, prior, duration, generator)
        truths = sources.truths[chosen]
        crps[chosen] = crps_columns(draws, truths, PERIODS)
        energy[chosen] = energy_score(draws, truths, PERIODS)
    return crps, energy


def _draws(
    sources: Sources, order: NDArray[np.int64], start: int, bands: Bands, prior: PriorSettings,
    duration: float, generator: np.random.Generator,
) -> Float:  # fmt: skip
    """Return draws of the prior for a chunk of sources by frequency: (chunk, DRAWS, 8)."""
    chosen = order[start : start + _CHUNK]
    draws = generator.random((len(chosen), DRAWS, len(NAMES)))
    for row, source in enumerate(chosen.tolist()):
        first = int(bands.first_bin[sources.band[source]])
        low, high = window_edges(first, prior, duration)
        draws[row, :, 0] = (low + (high - low) * draws[row, :, 0]) / prior.bins
    low, high = FDOT_T2_PRIOR
    fdot = prior.fdot_t2_min + (prior.fdot_t2_max - prior.fdot_t2_min) * draws[..., _FDOT]
    draws[..., _FDOT] = (fdot - low) / (high - low)
    # sources nearby in frequency have seen the same noise
    first_near = np.clip(
        np.arange(start, start + len(chosen)) - _NEAREST // 2, 0, max(len(order) - _NEAREST, 0)
    )
    some = min(_NEAREST, len(order))
    near = order[first_near[:, None] + generator.integers(0, some, (len(chosen), DRAWS))]
    at_snr_one = (
        sources.truths[near, _LN_AMPLITUDE] - np.log(sources.snr[near]) / LN_AMPLITUDE_RANGE
    )
    snr = draw_snr(draws[..., _LN_AMPLITUDE], prior)
    draws[..., _LN_AMPLITUDE] = at_snr_one + np.log(snr) / LN_AMPLITUDE_RANGE
    if prior.sky != "isotropic":
        draws[..., [_RA, _SIN_DEC]] = sources.truths[near][..., [_RA, _SIN_DEC]]
    return draws


def draw_snr(uniform: Float, prior: PriorSettings) -> Float:
    """Return SNR by the prior's law from numbers uniform on [0, 1)."""
    low, high = prior.snr_min, prior.snr_max
    if prior.snr_law == "uniform":
        return np.asarray(low + (high - low) * uniform)
    if prior.snr_law == "euclidean":
        return np.asarray((low**-3 + (high**-3 - low**-3) * uniform) ** (-1.0 / 3.0))
    return np.asarray(low * (high / low) ** uniform)
