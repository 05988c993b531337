"""Where the local fit starts: the places of the template bank that a peak may come from.

Above 4 mHz a year's Doppler shift is tens of bins and turns the phase by tens of radians, so
that a bank of a few hundred sky positions sees a source best at a wrong place whose own shift
makes up for it: bins away in frequency. A fit from there stays there. So the fit starts at
several places, and the best is kept. (Our choice; a bank four times as fine finds as much at
more cost.)
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.fit import LocalFit
from slotflow.response import Complex, Float
from slotflow.templates import STEPS, TemplateBank

SECOND_MODE_ANGLE: Final = np.deg2rad(25.0)  # a second sky maximum lies at least this far away
SPAN: Final = 10  # bins to either side of the peak within which a fit may start
FLOOR: Final = 0.4  # of the peak's statistic that a place must have
APART: Final = 0.9  # bins, and
ANGLE: Final = np.deg2rad(10.0)  # on the sky: two starts are further apart in one of them
FIRST: Final = 3  # steps of the fit after which places are compared
KEPT: Final = 2  # of them, which are followed to the end


def separation(sky: Float, point: Float) -> Float:
    """Return the angles of sky positions (G, 2) ra, dec from a point (2,): (G,)."""
    cosine = np.sin(sky[:, 1]) * np.sin(point[1]) + np.cos(sky[:, 1]) * np.cos(point[1]) * np.cos(
        sky[:, 0] - point[0]
    )
    return np.asarray(np.arccos(np.clip(cosine, -1.0, 1.0)))


def starts(
    statistic: NDArray[np.float32],
    peaks: NDArray[np.float32],
    bank: TemplateBank,
    position: int,
    most: int,
) -> list[Float]:
    """Return places beside a peak at which the statistic is high, best first.

    Args:
        statistic: (K, STEPS, G).
        peaks: (K, STEPS), its largest values.
        bank: the templates.
        position: of the peak, ``row * STEPS + step``.
        most: number of places.

    Returns:
        Up to ``most`` of (bin from the band's first, ra, dec, fdot T^2), of which each is apart
        from the peak and from the others, in frequency or on the sky.
    """
    row = position // STEPS
    low, high = max(row - SPAN, 0) * STEPS, min(row + SPAN + 1, len(peaks)) * STEPS
    flat = statistic.reshape(-1, statistic.shape[2])
    heights = peaks.reshape(-1)[low:high]
    least = FLOOR * float(heights[position - low])
    taken = [(position / STEPS, bank.sky[int(np.argmax(flat[position]))])]
    found: list[Float] = []
    for place in np.argsort(-heights, kind="stable"):
        if len(found) == most or heights[place] < least:
            break
        index = int(np.argmax(flat[low + place]))
        where, sky = (low + int(place)) / STEPS, bank.sky[index]
        if all(
            abs(where - other) >= APART or separation(sky[None], at)[0] >= ANGLE
            for other, at in taken
        ):
            taken.append((where, sky))
            found.append(np.array([where, *sky, bank.drift[index]]))
    return found


def promising(
    fit: LocalFit, places: list[Float], centre: int, data: Complex, sigma: Float
) -> list[Float]:
    """Return the best places after a few steps of the fit, so far moved.

    :data:`KEPT` of them, and the best one that is elsewhere on the sky than the first.
    """
    heights = [fit.run(x, centre, data, sigma, 2.0, FIRST)[0] for x in places]
    ranked = [places[index] for index in np.argsort(-np.array(heights), kind="stable")]
    kept, rest = ranked[:KEPT], ranked[KEPT:]
    if other_mode(kept) is None:
        other = other_mode([ranked[0], *rest])
        kept += [] if other is None else [other]
    return kept


def other_mode(places: list[Float]) -> Float | None:
    """Return the first place that is elsewhere on the sky than the first of all."""
    for x in places[1:]:
        if separation(x[None, 1:3], places[0][1:3])[0] >= SECOND_MODE_ANGLE:
            return x
    return None
