"""What slots look at and what evidence they leave."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.metrics import chance_peak_overlap, cosine_overlap, peak_overlap
from slotflow.outcomes import Batch
from slotflow.report.record import Attention, SlotFigures

Float = NDArray[np.float64]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]
Int = NDArray[np.int64]

NEAR_BINS: Final = 4.0  # within which a component is a source's neighbour


class Looks(NamedTuple):
    """What slots do, one row a band.

    ``attention`` (B, S, C) with the slots that hold sources in front, ``valid`` (B, C);
    ``evidence`` (B, 2, S + 1) summed over components that stand for sources, and over the others,
    of which there are ``components`` (B, 2); ``shares`` (B, 2, 4) attention, and attention spread
    evenly, on the source's own component, on near ones, elsewhere, on other sources' ones, summed
    over the ``slots`` (B,) whose source has a component.
    """

    number: Int
    attention: Float32
    valid: Bool
    evidence: Float
    components: Int
    shares: Float
    slots: Int


def looks(batch: Batch, matched: Float) -> Looks:
    """Return what is kept of a batch; ``matched``: the attention, holding slots first."""
    stands = np.zeros(batch.valid.shape, dtype=bool)
    named = batch.component >= 0
    stands[batch.band[named], batch.component[named]] = True
    kinds = np.stack((stands & batch.valid, ~stands & batch.valid), axis=1)
    evidence = np.einsum("bkc,bsc->bks", kinds, batch.evidence)
    band, slot, component = batch.band[named], batch.slot[named], batch.component[named]
    valid = batch.valid[band]
    own = np.arange(valid.shape[1]) == component[:, None]
    distance = np.abs(batch.places[band] - batch.truths[named, :1])
    near = valid & ~own & (distance <= NEAR_BINS)
    where = np.stack((own, near, valid & ~own & ~near, stands[band] & ~own), axis=-1)
    even = valid / np.maximum(valid.sum(axis=1, keepdims=True), 1)
    share = np.zeros((len(batch.number), 2, 4))
    for i, weight in enumerate((batch.attention[band, slot], even)):
        np.add.at(share[:, i], band, np.einsum("nc,nck->nk", weight, where))
    slots = np.bincount(band, minlength=len(batch.number))
    return Looks(
        batch.number, matched.astype(np.float32), batch.valid, evidence, kinds.sum(axis=2), share,
        slots,
    )  # fmt: skip


def slot_figures(seen: Looks, generator: np.random.Generator) -> SlotFigures | None:
    """Return the figures of all bands of two sources and more, None where there is none."""
    several = (seen.number >= 2) & seen.valid.any(axis=1)
    if not several.any():
        return None
    number, attention = seen.number[several], seen.attention[several].astype(np.float64)
    valid = seen.valid[several]
    evidence = seen.evidence[several].sum(axis=0) / np.maximum(
        seen.components[several].sum(axis=0)[:, None], 1
    )
    shuffled = _shuffled(attention, valid, generator)
    return SlotFigures(
        int(several.sum()), peak_overlap(attention, number),
        chance_peak_overlap(attention.shape[1], valid.sum(axis=1).tolist(), number.tolist()),
        cosine_overlap(attention, number), cosine_overlap(shuffled, number),
        tuple(evidence[0].tolist()), tuple(evidence[1].tolist()), _attention(seen),
    )  # fmt: skip


def _attention(seen: Looks) -> Attention | None:
    """Mean shares over all slots whose source has a component, in any band."""
    slots = int(seen.slots.sum())
    if not slots:
        return None
    looked, even = (seen.shares.sum(axis=0) / slots).tolist()
    own, near, elsewhere, others = looked
    return Attention(slots, NEAR_BINS, own, near, elsewhere, others, tuple(even))


def _shuffled(attention: Float, valid: Bool, generator: np.random.Generator) -> Float:
    """Each slot's attention in another order of the band's components."""
    keys = np.where(valid[:, None], generator.random(attention.shape), 2.0)
    here = np.argsort(~valid, axis=1, kind="stable")[:, None]
    order = np.argsort(keys, axis=2)
    moved = np.zeros_like(attention)
    source = np.take_along_axis(attention, np.broadcast_to(here, attention.shape), axis=2)
    np.put_along_axis(moved, order, source, axis=2)
    return moved
