"""ln Z by nested sampling, for :mod:`exact`: the same prior and likelihood, dynesty.

Nested sampling pays for every nat from the prior to the posterior, with an error that grows with
their root. So it gets a box of the prior about the posterior, as a long run of another sampler
has it, and the box's share of the prior is counted: what lies outside is less than one of the long
run's draws. psi and phi0 keep their whole ranges, psi folded.
"""

from typing import Any

import numpy as np

from slotflow.likelihood import BandLikelihood
from slotflow.parameters import DEC, F0, FDOT, IOTA, PHI0, PSI, RA, fdot_widening

Float = np.ndarray[Any, np.dtype[np.float64]]

SNR = 2  # column of the unit cube that stands for the amplitude
OUTSIDE = -1e100  # ln L where sources are not in order
#: Steps for a new point, a source: with dynesty's own number (36 for two sources), ln Z came out
#: high by one, four times the error it gives.
WALKS = 80
PADDING = 0.1  # of the long run's range, on either side


def to_unit(sources: Float, likelihood: BandLikelihood) -> Float:
    """Return places in the prior's unit cube, the inverse of ``likelihood.from_unit``: (n, 8)."""
    prior, unit = likelihood.prior, np.empty_like(sources)
    settings = prior.settings
    low, high = prior.f0
    drift = sources[:, FDOT] * likelihood.duration**2 / fdot_widening(sources[:, F0])
    span = settings.fdot_t2_max - settings.fdot_t2_min
    unit[:, F0] = (sources[:, F0] - low) / (high - low)
    unit[:, FDOT] = (drift - settings.fdot_t2_min) / span
    unit[:, SNR] = np.log(likelihood.snr(sources) / settings.snr_min) / prior.ln_snr_range
    unit[:, RA] = np.mod(sources[:, RA] / (2.0 * np.pi), 1.0)
    unit[:, DEC] = 0.5 * (1.0 + np.sin(sources[:, DEC]))
    unit[:, PSI] = np.mod(sources[:, PSI] / np.pi, 1.0)
    unit[:, IOTA] = 0.5 * (1.0 - np.cos(sources[:, IOTA]))
    unit[:, PHI0] = np.mod(sources[:, PHI0] / (2.0 * np.pi), 1.0)
    return unit


def box(draws: Float, likelihood: BandLikelihood) -> tuple[Float, Float]:
    """Return the ends (8,) of a box in the unit cube about a source's draws (n, 8)."""
    unit = to_unit(draws, likelihood)
    low, high = unit.min(axis=0), unit.max(axis=0)
    reach = PADDING * (high - low)
    low, high = np.maximum(low - reach, 0.0), np.minimum(high + reach, 1.0)
    low[[PSI, PHI0]], high[[PSI, PHI0]] = 0.0, (0.5, 1.0)
    return low, high


def by_dynesty(likelihood: BandLikelihood, draws: Float, live: int) -> tuple[float, float]:
    """Return ln Z against noise alone and its error.

    Sources are ordered by f0, each with a box of its own; that they have no order makes S! of it.
    That psi is folded changes nothing: Z is the mean of the likelihood over the prior, and the
    half is like the other.

    Args:
        likelihood: of the band.
        draws: (n, S, 8) of the posterior, sources as :mod:`slotflow.parameters` has them.
        live: points.
    """
    import dynesty

    number = draws.shape[1]
    order = np.argsort(draws[..., F0], axis=1)
    draws = np.take_along_axis(draws, order[..., None], axis=1)
    low, high = (np.array(ends) for ends in zip(
        *(box(draws[:, s], likelihood) for s in range(number)), strict=True
    ))  # fmt: skip

    def transform(unit: Float) -> Float:
        place = low + (high - low) * unit.reshape(number, 8)
        return likelihood.from_unit(place).reshape(-1)

    def ln_l(flat: Float) -> float:
        if (np.diff(flat.reshape(number, 8)[:, F0]) < 0.0).any():
            return OUTSIDE
        gain = likelihood.log_likelihood(flat.reshape(1, number, 8))[0] - likelihood.log_noise
        return float(gain)

    sampler = dynesty.NestedSampler(
        ln_l, transform, 8 * number, nlive=live, sample="rwalk", walks=WALKS * number,
        rstate=np.random.default_rng(4),
        periodic=[8 * s + column for s in range(number) for column in (PSI, PHI0)],
    )  # fmt: skip
    sampler.run_nested(dlogz=0.1, print_progress=False)
    # of psi's folded range the mean over the prior is that over the whole
    shares = np.log(high - low)
    shares[:, PSI] = 0.0
    factor = float(shares.sum()) + float(np.log(np.arange(1, number + 1)).sum())
    return float(sampler.results.logz[-1] + factor), float(sampler.results.logzerr[-1])
