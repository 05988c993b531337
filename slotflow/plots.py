"""Pictures of a result, and a folder of them. Colours that the colour-blind can tell apart.

Figures are matplotlib's own objects: pyplot knows none of them. matplotlib is imported when the
first picture is made.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from slotflow import __version__
from slotflow.atomic import written
from slotflow.errors import InputError
from slotflow.parameters import F0
from slotflow.plot_band import plot_band, reconstructions, turned_grid, whitened_waveforms
from slotflow.plot_corner import FEWEST_DRAWS, plot_corner
from slotflow.plot_sky import plot_sky
from slotflow.plot_slots import plot_slots
from slotflow.plot_style import checked_truth
from slotflow.response import ResponseGrid
from slotflow.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from slotflow.checkpoint import Model

__all__ = ["match_truth", "plot_band", "plot_corner", "plot_sky", "plot_slots", "write_plots"]

Float = NDArray[np.float64]

MOST: Final = 20
MATCH_BINS: Final = 1.0
_OURS: Final = re.compile(r"(band|corner|sky|slots)-\d+\.png", re.ASCII)


def match_truth(result: Result, grid: ResponseGrid, truth: Float) -> dict[int, Float]:
    """Return the true source (8,) of each source of a result that has one, by its index.

    The one within a bin whose waveform is nearest to the posterior's mean waveform, if that
    leaves less than no subtraction would. Only sources of the bands that were kept are matched.
    """
    duration, found = result.observation.duration, {}
    turned = turned_grid(grid, result.rotation)
    for view in result.views.values():
        for one in reconstructions(view, result, grid):
            f0 = result.sources[one.source].f0
            near = truth[np.abs(truth[:, F0] - f0) * duration < MATCH_BINS]
            if one.source not in view.sources or not len(near):
                continue
            signals = whitened_waveforms(near, view, result.observation, turned)
            left = (np.abs(signals - one.waveform) ** 2).sum(axis=(1, 2))
            best = int(np.argmin(left))
            if left[best] < (np.abs(one.waveform) ** 2).sum():
                found[one.source] = near[best]
    return found


def write_plots(
    result: Result,
    folder: Path,
    model: "Model",
    truth: Float | None = None,
    most: int = MOST,
    *,
    force: bool = False,
) -> list[Path]:
    """Write the pictures of a result's loudest sources and of their bands, as PNG.

    ``corner-N.png`` and ``sky-N.png`` for source N of the table; ``band-B.png`` and
    ``slots-B.png`` for the band from bin B. Each is written under a temporary name and renamed.

    Args:
        result: with its bands kept (``keep_bands=True``), else there are none of the bands.
        folder: made where it is missing.
        model: that the result is from.
        truth: (S, 8) true sources, in the bands' pictures and, matched, in the sources'.
        most: sources at most, the loudest first.
        force: replace the pictures of another run; else they are refused.

    Returns:
        The files written.

    Raises:
        InputError: pictures are there already, the folder cannot be used, ``most`` is not
            positive, or there are too few draws.
    """
    if most < 1:
        raise InputError(f"most: expected at least 1; got {most}")
    fewest = min((len(source.samples) for source in result.sources), default=FEWEST_DRAWS)
    check_plots(folder, fewest, force=force)
    truth = checked_truth(truth, rows=1)
    _prepare(folder)
    paths = []
    for name, figure in _pictures(result, model.grid, truth, most):
        path = folder / name
        with written(path) as temporary:
            figure.savefig(
                temporary, format="png", metadata={"Software": f"slotflow {__version__}"}
            )
        paths.append(path)
    return paths


def _pictures(
    result: Result, grid: ResponseGrid, truth: Float | None, most: int
) -> "Iterator[tuple[str, Figure]]":
    """Make one picture at a time, so that no more than one is held."""
    loudest = sorted(range(len(result.sources)), key=lambda i: -result.sources[i].snr)[:most]
    known = {} if truth is None else match_truth(result, grid, truth)
    for first_bin, view in sorted(result.views.items()):
        if set(view.sources) & set(loudest):
            yield f"band-{first_bin}.png", plot_band(view, result, grid, truth)
            yield f"slots-{first_bin}.png", plot_slots(view)
    for number in sorted(loudest):
        source, true = result.sources[number], known.get(number)
        yield f"corner-{number}.png", plot_corner(source, true)
        yield f"sky-{number}.png", plot_sky(source, true)


def check_plots(folder: Path, samples: int, *, force: bool = False) -> None:
    """Refuse, before anything is computed, what :func:`write_plots` would refuse.

    Args:
        folder: where to.
        samples: draws of each source.
        force: the pictures of another run may be replaced.

    Raises:
        InputError: pictures are there already, or too few draws.
    """
    if samples < FEWEST_DRAWS:
        raise InputError(f"samples: {samples}; pictures need at least {FEWEST_DRAWS}")
    there = _there(folder)
    if there and not force:
        raise InputError(
            f"{there[0]}: {len(there)} pictures of another run are in the folder: choose"
            " another, or replace them (force)"
        )


def _there(folder: Path) -> list[Path]:
    """Return the pictures in a folder, by name.

    Raises:
        InputError: what the system said.
    """
    try:
        return sorted(path for path in folder.iterdir() if _OURS.fullmatch(path.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{folder}: cannot be used: {error.strerror or error}") from error


def _prepare(folder: Path) -> None:
    """Make the folder, and remove the pictures of another run.

    Raises:
        InputError: what the system said.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in _there(folder):
            path.unlink()
    except OSError as error:
        raise InputError(f"{folder}: cannot be used: {error.strerror or error}") from error
