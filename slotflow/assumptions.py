"""What a model takes for granted of the data: orbit, epoch, and the noise's order of magnitude.

What contradicts it is refused; what can only be assumed, or looks odd, becomes a note.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from slotflow.bands import Tile
from slotflow.checkpoint import Model
from slotflow.errors import InputError
from slotflow.orbitmap import ORBIT_TOLERANCE, OrbitMap, map_orbit
from slotflow.outlying import FALSE_ALARMS
from slotflow.readers import Observation
from slotflow.results import Psd, TileRecord

__all__ = [
    "HasGaps", "OrbitMap", "check_level", "check_orbit", "gap_notes", "map_orbit",
    "noise_notes", "outlying_notes",
]  # fmt: skip

Float = NDArray[np.float64]

_NAMED: Final = 4  # bands in a note
LEVEL_RANGE: Final = (0.1, 10.0)  # of the model's density; a level beyond it is noted


class HasGaps(Protocol):
    """An observation, or its spectrum."""

    @property
    def gap_fraction(self) -> float:
        """Share of the samples that lie in gaps."""


def check_orbit(observation: Observation, model: Model) -> tuple[str, ...]:
    """Refuse data of another orbit or epoch; return what had to be assumed.

    Raises:
        InputError: naming the attribute; also where :func:`map_orbit` could map the sky.
    """
    mapped = map_orbit(observation, model)
    if abs(mapped.rotation) > ORBIT_TOLERANCE or "'orbit_lambda1'" in mapped.cause:
        raise InputError(f"{observation.path}: {mapped.cause}")
    return mapped.notes


def gap_notes(data: HasGaps, model: Model) -> tuple[str, ...]:
    """Return a note where the data have gaps and the model was trained without.

    Args:
        data: an observation or its spectrum.
        model: whose training settings say whether its data had gaps.
    """
    if data.gap_fraction == 0.0 or model.preset.observation.gaps.any:
        return ()
    return (
        f"{100 * data.gap_fraction:.3g}% of the data lie in gaps, and the model was trained without"
        " gaps: the result is out of distribution, and its probabilities and widths are not"
        " calibrated",
    )


def check_level(path: Path, measured: Float, frequency: Float) -> None:
    """Refuse a band whose noise cannot be divided out.

    Args:
        path: the file, for the message.
        measured: (2,) noise level of A and E over the model's density.
        frequency: of the band's bins, Hz.

    Raises:
        InputError: naming file, channel and frequencies.
    """
    for channel, value in zip("AE", measured.tolist(), strict=True):
        if not (np.isfinite(value) and value > 0.0):
            raise InputError(
                f"{path}: channel {channel}, {frequency[0]:.6e} to {frequency[-1]:.6e} Hz: noise"
                f" level {value:g} of the model's; a finite level above 0 expected (channels that"
                " are zero or equal to each other? wrong units?)"
            )


def noise_notes(path: Path, plan: Sequence[Tile], measured: Float, psd: Psd) -> tuple[str, ...]:
    """Return what about the noise the user should know.

    Args:
        path: the file, for the message.
        plan: the bands.
        measured: (bands, 2) noise level of A and E over the model's density.
        psd: whether the level was estimated.
    """
    notes = []
    low, high = LEVEL_RANGE
    odd = ((measured < low) | (measured > high)).any(axis=1)
    if odd.any():
        first = plan[int(np.argmax(odd))]
        notes.append(
            f"{path}: the noise level is {measured.min():.3g} to {measured.max():.3g} of the"
            f" model's density, outside {low:g} to {high:g} in {int(odd.sum())} of {len(odd)}"
            f" bands, the first from {first.low * 1e3:.4f} mHz: the likely causes are wrong units,"
            " the wrong TDI generation, or data without the Galaxy"
        )
    if psd == "model":
        notes.append(
            "psd 'model': the noise level was not estimated; the model was trained with a level"
            " estimated from each band"
        )
    return tuple(notes)


def outlying_notes(tiles: Sequence[TileRecord]) -> tuple[str, ...]:
    """Return a note where bands lie outside the training distribution, naming the farthest.

    Args:
        tiles: the bands.
    """
    outside = sorted((t for t in tiles if t.outside), key=lambda t: -(t.outlying or 0.0))
    if not outside:
        return ()
    scored = sum(tile.outlying is not None for tile in tiles)
    named = ", ".join(f"from {t.low * 1e3:.4f} mHz {t.outlying:.2f}" for t in outside[:_NAMED])
    more = f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
    return (
        f"{len(outside)} of {scored} bands are outside the training distribution (score above 1,"
        f" as {FALSE_ALARMS:.0%} of simulated bands have it: {named}{more}): the result there is"
        " out of distribution, and its probabilities and widths are not calibrated",
    )
