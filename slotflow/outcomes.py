"""What a network makes of bands whose sources are known, batch by batch.

Every true source is assigned to a slot by the Hungarian algorithm on -ln q(source | slot), none
left out because it was missed. A band's draws depend on the seed and the band alone, not on which
bands are read beside it.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from slotflow.batches import Tensors
from slotflow.matching import assign
from slotflow.model import Reading, SlotFlow, distinct_slots
from slotflow.response import Float
from slotflow.tokendata import TokenData, TokenSource, as_source

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

#: What a pair costs of which q knows nothing: more than any other, so that none is preferred.
OUTSIDE_COST: Final = 1e6


class Chooser(Protocol):
    """Says which slots are reported, of existence logits and whether they count, (B, S) each."""

    def __call__(self, existence: Float, counts: Bool) -> Bool: ...


class Batch(NamedTuple):
    """B bands, S slots, C components, and their n true sources; local units as in TokenData.

    Of bands: ``sample`` and ``first_bin`` (B,), ``number`` of sources (B,), ``existence`` logits
    (B, S), ``counts`` (B, S) whether a slot can be a report (the likeliest on its component, and
    there is one), ``attention`` (B, S, C), ``evidence`` (B, S + 1, C), ``places`` (B, C) bins of
    the components and ``valid`` (B, C), ``reference`` (B, S, R) of each slot's component.

    Of sources: ``band`` (n,) row in the batch, ``slot`` (n,) assigned, ``component`` (n,) that
    stands for it, -1 for none, ``truths`` (n, 8), ``snr`` (n,), ``nearest`` (n,) bins to the
    nearest other source of the band, infinite for none, ``truth_log_q`` (n,) in the unit cube,
    -inf where the truth is outside the support, ``draws`` (n, m, 8) and their ``log_q`` (n, m).

    Of reported slots, r of them: ``report_band`` (r,), ``report_slot`` (r,), ``report_draws``
    (r, k, 8).
    """

    sample: Int
    first_bin: Int
    number: Int
    existence: Float
    counts: Bool
    attention: Float
    evidence: Float
    places: Float
    valid: Bool
    reference: Float
    band: Int
    slot: Int
    component: Int
    truths: Float
    snr: Float
    nearest: Float
    truth_log_q: Float
    draws: Float
    log_q: Float
    report_band: Int
    report_slot: Int
    report_draws: Float

    @property
    def offset(self) -> Float:
        """Bins from each source to the component of its slot: (n,)."""
        return np.asarray(np.abs(self.reference[self.band, self.slot, 0] - self.truths[:, 0]))


def outcomes(
    network: SlotFlow, data: TokenSource | TokenData, draws: int, seed: int = 0, batch: int = 250,
    chooser: Chooser | None = None, report_draws: int = 64,
) -> Iterator[Batch]:  # fmt: skip
    """Read bands and draw from the posteriors of their sources; no more than a batch is held.

    Args:
        network: in evaluation mode.
        data: bands, in memory or read as they are needed.
        draws: posterior draws a source.
        seed: of the draws.
        batch: bands at a time.
        chooser: of the slots that are reported; None: no slot is.
        report_draws: draws of each of these.
    """
    source = as_source(data)
    for start in range(0, len(source), batch):
        index = np.arange(start, min(start + batch, len(source)))
        bands = source.rows(index)
        rows = Tensors.of(bands, source.bands(index) if network.needs_data else None)
        with torch.no_grad():
            reading = network.read(rows.batch)
            cost = pair_cost(network, reading, rows.targets.sources, rows.count)
        yield _outcome(_Read(network, bands, reading, cost), draws, seed, chooser, report_draws)


class _Read(NamedTuple):
    network: SlotFlow
    bands: TokenData
    reading: Reading
    cost: torch.Tensor

    def sample(self, band: int, slots: Int, draws: int, entropy: list[int]) -> tuple[Float, Float]:
        """Draw from some slots of a band, by a generator of their own."""
        seed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(seed >> 1))
        chosen = torch.from_numpy(slots)
        context, reference = self.reading.context[band][chosen], self.reading.reference[band]
        with torch.no_grad():
            local, log_q = self.network.sample(context, reference[chosen], draws, generator)
        return local.numpy(), log_q.numpy()


def _outcome(
    read: _Read, draws: int, seed: int, chooser: Chooser | None, report_draws: int
) -> Batch:
    bands, reading = read.bands, read.reading
    finite = torch.isfinite(read.cost)
    cost = torch.where(finite, read.cost, OUTSIDE_COST)
    count = torch.from_numpy(bands.number)
    slots = assign(cost, present(count, cost.shape[2])).numpy()
    band, place = np.nonzero(slots >= 0)
    slot = slots[band, place]
    truth_log_q = np.where(finite.numpy(), -read.cost.numpy(), -np.inf)[band, slot, place]
    existence = reading.existence.double().numpy()
    counts = distinct_slots(reading).numpy() & bands.valid.any(axis=1)[:, None]
    reported = np.zeros_like(counts) if chooser is None else chooser(existence, counts)
    found, log_q = _draws(read, slots >= 0, slots, draws, [seed, 0])
    each = np.broadcast_to(np.arange(reported.shape[1]), reported.shape)
    reports, _ = _draws(read, reported, each, report_draws, [seed, 1])
    report_band, report_slot = np.nonzero(reported)
    return Batch(
        bands.sample, bands.first_bin, bands.number, existence, counts,
        reading.attention.double().numpy(), reading.evidence.double().numpy(),
        bands.reference[..., 0], bands.valid, reading.reference.double().numpy(),
        band, slot, bands.component[band, place], bands.sources[band, place],
        bands.snr[band, place], _nearest(bands, band, place), truth_log_q.astype(np.float64),
        found, log_q, report_band, report_slot, reports,
    )  # fmt: skip


def _draws(
    read: _Read, chosen: Bool, slots: Int, draws: int, entropy: list[int]
) -> tuple[Float, Float]:
    """Draw from the chosen slots (B, K) of all bands: (n, draws, 8) and ln q (n, draws)."""
    samples, log_q = [np.empty((0, draws, 8))], [np.empty((0, draws))]
    for band in np.flatnonzero(chosen.any(axis=1)).tolist():
        own = [*entropy, int(read.bands.sample[band]), int(read.bands.first_bin[band])]
        part, density = read.sample(band, slots[band][chosen[band]], draws, own)
        samples.append(part)
        log_q.append(density)
    return np.concatenate(samples), np.concatenate(log_q)


def _nearest(bands: TokenData, band: Int, place: Int) -> Float:
    """Bins from each source to the nearest other one of its band, infinite for none."""
    bins = np.where(np.isnan(bands.snr), np.inf, bands.sources[..., 0])
    distance = np.abs(bins[band] - bands.sources[band, place, :1])
    distance[np.arange(len(band)), place] = np.inf
    return np.asarray(distance.min(axis=1))


def present(count: torch.Tensor, most: int) -> torch.Tensor:
    """Return which of ``most`` places hold a source: (B,) -> (B, most)."""
    return torch.arange(most)[None] < count[:, None]


def pair_cost(
    network: SlotFlow, reading: Reading, sources: torch.Tensor, count: torch.Tensor
) -> torch.Tensor:
    """Return -ln q(source | slot) of every pair: (B, S, K); 0 for padding."""
    batch, slots = reading.existence.shape
    most = sources.shape[1]
    there = present(count, most)[:, None].expand(-1, slots, -1)
    context = reading.context[:, :, None].expand(-1, -1, most, -1)[there]
    reference = reading.reference[:, :, None].expand(-1, -1, most, -1)[there]
    chosen = sources[:, None].expand(-1, slots, -1, -1)[there]
    cost = torch.zeros(batch, slots, most)
    cost[there] = -network.log_prob(chosen, context, reference).sum(dim=-1)
    return cost
