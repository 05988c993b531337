"""Models side by side: differences of their scores, source by source."""

from collections.abc import Sequence

import numpy as np

from slotflow.errors import InputError
from slotflow.report.outcome import NAMES, Outcome
from slotflow.report.record import Difference, ReportSettings
from slotflow.scores import estimates


def differences(
    outcomes: Sequence[Outcome], names: Sequence[str], settings: ReportSettings
) -> tuple[Difference, ...]:
    """Return each model's scores minus the first one's, with bootstrap intervals.

    The same sources in both, so that what is hard for all cancels. Sources whose NLL is infinite
    for one of the two are left out of its difference.

    Raises:
        InputError: outcomes of other sources.
    """
    first, found = outcomes[0].sources, []
    for name, outcome in zip(names[1:], outcomes[1:], strict=True):
        other = outcome.sources
        if not np.array_equal(first.truths, other.truths):
            raise InputError(f"{name}: read other sources than {names[0]}: nothing to compare")
        rng = np.random.default_rng([settings.seed, 40])
        columns = np.column_stack((other.crps - first.crps, other.energy - first.energy))
        rows = estimates(columns, rng, first.band, settings.level, settings.resamples)
        found += [
            Difference(name, score, row)
            for score, row in zip((*NAMES, "energy"), rows, strict=True)
        ]
        known = np.isfinite(first.nll) & np.isfinite(other.nll)
        if known.any():
            change = (other.nll[known] - first.nll[known])[:, None]
            band = first.band[known]
            row = estimates(change, rng, band, settings.level, settings.resamples)[0]
            found.append(Difference(name, "nll", row))
    return tuple(found)
