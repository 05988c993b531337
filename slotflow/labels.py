"""The truth beside the tokens: local units, the window's edges, which component stands for whom."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from slotflow.config import PriorSettings
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, PHI0, PSI, RA, fdot_widening
from slotflow.response import Float
from slotflow.tokens import REFERENCE

GATE_BINS = 2.0  # a component further than this from a source does not stand for it


def window_edges(first_bin: int, prior: PriorSettings, duration: float) -> tuple[float, float]:
    """Return the window of interest's edges in bins from the band's first."""
    width = prior.window((first_bin + prior.bins // 2) / duration)
    return 0.5 * (prior.bins - width), 0.5 * (prior.bins + width)


def to_local_units(sources: Float, first_bin: int, duration: float) -> Float:
    """Return (n, 8) bin, fdot T^2, ln amplitude, ra, sin dec, psi, cos iota, phi0.

    fdot is divided by :func:`slotflow.parameters.fdot_widening`, so that its range is the same at
    all frequencies.
    """
    return np.stack(
        [
            sources[:, F0] * duration - first_bin,
            sources[:, FDOT] * duration**2 / fdot_widening(sources[:, F0]),
            np.log(sources[:, AMPLITUDE]),
            sources[:, RA],
            np.sin(sources[:, DEC]),
            sources[:, PSI],
            np.cos(sources[:, IOTA]),
            sources[:, PHI0],
        ],
        axis=-1,
    )


def from_local_units(local: Float, first_bin: int | Float, duration: float) -> Float:
    """Invert :func:`to_local_units`: (..., 8) in the order of PARAMETERS."""
    f0 = (local[..., 0] + first_bin) / duration
    return np.stack(
        [
            f0,
            local[..., 1] * fdot_widening(f0) / duration**2,
            np.exp(local[..., 2]),
            local[..., 3],
            np.arcsin(np.clip(local[..., 4], -1.0, 1.0)),
            local[..., 5],
            np.arccos(np.clip(local[..., 6], -1.0, 1.0)),
            local[..., 7],
        ],
        axis=-1,
    )


def standing_components(
    reference: Float, sources: Float, snr: Float, first_bin: int, duration: float
) -> NDArray[np.int64]:
    """Return which component stands for each source, -1 where none is near: (n,).

    One component stands for one source at most. The cost is how far they are in bins and on
    the sky, in the component's own widths, and in loudness; components more than
    ``GATE_BINS`` away do not come into question.
    """
    component = np.full(len(sources), -1, dtype=np.int64)
    if not len(sources) or not len(reference):
        return component
    column = {name: reference[:, i] for i, name in enumerate(REFERENCE)}
    offset = sources[:, F0, None] * duration - first_bin - column["bin"]
    cosine = np.sin(sources[:, DEC, None]) * np.sin(column["dec"]) + np.cos(
        sources[:, DEC, None]
    ) * np.cos(column["dec"]) * np.cos(sources[:, RA, None] - column["ra"])
    angle = np.arccos(np.clip(cosine, -1.0, 1.0))
    sky = np.hypot(column["sigma_east"], column["sigma_north"])
    cost = (
        np.log1p((offset / np.maximum(column["sigma_bin"], 0.1)) ** 2)
        + np.log1p((angle / np.maximum(sky, 0.1)) ** 2)
        + np.abs(np.log(column["rho"]) - np.log(snr)[:, None])
    )
    cost = np.where(np.abs(offset) <= GATE_BINS, cost, 1e3)
    for source, index in zip(*linear_sum_assignment(cost), strict=True):
        if cost[source, index] < 1e3:
            component[source] = index
    return component
