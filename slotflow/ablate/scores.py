"""Scores of a decomposition: where slots look, what they recover, and two controls."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slotflow.ablate.decomposition import Decomposed, Decomposition, Examples
from slotflow.matching import assign
from slotflow.metrics import chance_peak_overlap, cosine_overlap, peak_overlap


def recovery(parameters: Tensor, existence: Tensor, truth: Tensor, number: Tensor) -> Tensor:
    """Return the mean absolute error of each parameter, (P,).

    The K slots that exist most, K being the true number, are assigned to the K sources by the
    Hungarian algorithm on the Euclidean distance of their parameters.

    Args:
        parameters: (B, S, P) of the slots.
        existence: (B, S) logits.
        truth: (B, K, P).
        number: (B,), at most S.
    """
    slots, most = existence.shape[1], truth.shape[1]
    rank = existence.argsort(dim=1, descending=True).argsort(dim=1)
    distance = torch.cdist(parameters.double(), truth.double())
    # a slot that is not among the K costs more than all that are
    far = 1.0 + distance.flatten(1).max(dim=1).values * (most + 1)
    unlikely = rank >= number.clamp(max=slots)[:, None]
    cost = distance + (unlikely * far[:, None])[..., None]
    present = torch.arange(most)[None] < number[:, None]
    slot = assign(cost, present)
    band, source = torch.nonzero(present, as_tuple=True)
    error = (parameters[band, slot[band, source]] - truth[band, source]).abs()
    return error.double().mean(dim=0)


def score(
    network: Decomposition, found: Decomposed, data: Examples, names: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of one trained network on its test set.

    ``peak_overlap`` and ``cosine_overlap`` of the first K slots, ``chance`` of the former;
    ``recovery`` mean absolute errors; ``recovery_one_slot`` the same with the most likely slot
    in place of all, ``recovery_mean_slot`` with the heads reading the mean slot: what slots that
    are all alike would recover. ``existence`` share of slots whose existence is told right,
    ``k_exact`` share of mixtures whose number is.
    """
    number = data.number
    one = found.parameters[torch.arange(len(number)), found.existence.argmax(1)]
    with torch.no_grad():
        mean = network.read(found.slots.mean(dim=1))
    controls = {"one_slot": one, "mean_slot": mean}
    target = torch.arange(found.existence.shape[1])[None] < number[:, None]
    yes = found.existence > 0.0
    counts = number.tolist()
    slots, tokens = found.attention.shape[1:]
    figures: dict[str, Any] = {
        "peak_overlap": peak_overlap(found.attention.numpy(), counts),
        "chance": chance_peak_overlap(slots, tokens, counts),
        "cosine_overlap": cosine_overlap(found.attention.numpy(), counts),
        "existence": float((yes == target).double().mean()),
        "k_exact": float((yes.sum(1) == number).double().mean()),
    }
    errors = recovery(found.parameters, found.existence, data.parameters, number)
    figures["recovery"] = dict(zip(names, errors.tolist(), strict=True))
    for name, alike in controls.items():
        same = alike[:, None].expand_as(found.parameters)
        errors = recovery(same, found.existence, data.parameters, number)
        figures[f"recovery_{name}"] = dict(zip(names, errors.tolist(), strict=True))
    return figures


def examples(found: Decomposed, number: Tensor, most: int = 3) -> list[dict[str, Any]]:
    """Return attention and evidence of the first few mixtures of two sources or more."""
    chosen = torch.nonzero(number >= 2).flatten()[:most].tolist()
    return [
        {
            "mixture": i,
            "number": int(number[i]),
            "attention": _rounded(found.attention[i]),
            "evidence": _rounded(found.evidence[i]),
            "existence": _rounded(torch.sigmoid(found.existence[i])),
        }
        for i in chosen
    ]


def _rounded(values: Tensor) -> Any:
    return [[round(v, 5) for v in row] if isinstance(row, list) else round(row, 5)
            for row in values.double().tolist()]  # fmt: skip
