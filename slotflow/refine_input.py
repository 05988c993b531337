"""A band as it was read, for its refinement."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slotflow.components import ComponentSet
from slotflow.likelihood import BandLikelihood, bin_sigma
from slotflow.model import Reading
from slotflow.refine_space import Space
from slotflow.results import SourcePosterior
from slotflow.whitening import WhiteBand

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]


class Slot(NamedTuple):
    """One source that the network reports.

    Attributes:
        number: of the slot.
        probability: that it exists.
        samples: (n, 8) of the network, in the order of PARAMETERS.
        context: (1, context).
        reference: (1, R).
        component: its number among the band's components.
    """

    number: int
    probability: float
    samples: Float
    context: Tensor
    reference: Tensor
    component: int


class RefineBand(NamedTuple):
    """A band as a refinement needs it.

    Attributes:
        first_bin: its first Fourier bin.
        data: (2, K) whitened A and E.
        level: (2,) noise power by the component search.
        sigma: (2, K) the whitening's divisor.
        components: (C,) of :data:`slotflow.components.COMPONENT_DTYPE`.
        slots: the sources reported.
        gap_fraction: share of the data that lies in gaps.
    """

    first_bin: int
    data: NDArray[np.complexfloating]
    level: Float
    sigma: Float
    components: NDArray[np.void]
    slots: tuple[Slot, ...]
    gap_fraction: float = 0.0


def band_to_refine(
    first_bin: int, white: WhiteBand, found: ComponentSet, reading: Reading, row: int,
    sources: Sequence[SourcePosterior],
) -> RefineBand:  # fmt: skip
    """Return a band as it was read.

    Args:
        first_bin: its first Fourier bin.
        white: whitened.
        found: its components.
        reading: of the network.
        row: of the band in it.
        sources: that the band reports.
    """
    slots = tuple(
        Slot(
            source.slot, source.probability, source.samples,
            reading.context[row : row + 1, source.slot].clone(),
            reading.reference[row : row + 1, source.slot].clone(),
            int(reading.choice[row, source.slot]),
        )
        for source in sources
    )  # fmt: skip
    sigma = bin_sigma(white.sigma, white.density)
    return RefineBand(
        first_bin, white.data[:2], found.level, sigma, found.components, slots, white.gap_fraction
    )


def place_of(slot: Slot, space: Space) -> float:
    """Return the median place of a slot's draws, in bins from the band's first."""
    return float(np.median(slot.samples[:, 0])) * space.duration - space.first_bin


def component_signal(likelihood: BandLikelihood, component: np.void, space: Space) -> Complex:
    """Return a component's best fit, whitened: (2, K)."""
    f0 = (component["bin"] + space.first_bin) / space.duration
    drift = component["fdot_t2"] / space.duration**2
    intrinsic = np.array([[f0, drift, component["ra"], component["dec"]]])
    coefficients = np.array([component["plus"], component["cross"]])
    return np.asarray(np.einsum("p,pck->ck", coefficients, likelihood.basis(intrinsic)[0]))
