"""How far a report's bands lie from what a model was trained on: how many are flagged, how much."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from slotflow.checkpoint import Model
from slotflow.outlying import FALSE_ALARMS
from slotflow.outlying_bands import set_vectors
from slotflow.report.figures import share
from slotflow.report.record import OutlyingScores
from slotflow.store import TrainingSet

#: Levels of the scores' quantiles by their names; the last is the largest score.
QUANTILES: Final = {"q05": 0.05, "q50": 0.5, "q90": 0.9, "q99": 0.99, "largest": 1.0}


def outlying_scores(
    model: Model, data: TrainingSet, level: float,
    progress: Callable[[int, int], None] | None = None,
) -> OutlyingScores | None:  # fmt: skip
    """Score all bands of a set; None for a model without a fitted score.

    Args:
        model: that reads them.
        data: a set that was searched for this model.
        level: of the interval.
        progress: called with (bands done, bands).

    Raises:
        InputError: components or tokens that are missing or damaged, or a damaged shard.
    """
    if model.outlying is None:
        return None
    found = [model.outlying(band) for band in set_vectors(model, data, None, progress)]
    return summarised([one.value for one in found], [one.kind for one in found], level)


def summarised(values: ArrayLike, kinds: Sequence[str], level: float) -> OutlyingScores:
    """Return what is told of some bands' scores.

    Args:
        values: (n,) scores, n above 0.
        kinds: (n,) what each band is furthest in; may be empty.
        level: of the interval.
    """
    scores = np.asarray(values, dtype=np.float64)
    outside = scores > 1.0
    flagged = Counter(kind for kind, out in zip(kinds, outside, strict=False) if out)
    quantiles = np.quantile(scores, list(QUANTILES.values())).tolist()
    return OutlyingScores(
        share(outside, level), FALSE_ALARMS,
        tuple(zip(QUANTILES.values(), quantiles, strict=True)), tuple(flagged.most_common()),
    )  # fmt: skip
