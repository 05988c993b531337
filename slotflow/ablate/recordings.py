"""Any folder of recordings, and sources drawn from it for mixtures."""

import math
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from slotflow.ablate.sounds import (
    FULL_SCALE,
    SAMPLES,
    SPECTRUM,
    at_least,
    check_folder,
    read_audio,
    rms,
)
from slotflow.errors import InputError

Float = NDArray[np.float32]
Part = Literal["all", "training", "test"]

SUFFIXES: Final = (".wav", ".ogg", ".oga", ".flac")

#: RMS of a source while it sounds, log-uniform between these (-35 and -15 dB of full scale, so
#: that one source may be ten times another); below SILENT (-60 dB) it is not amplified to that.
RMS: Final = (10.0 ** (-35 / 20), 10.0 ** (-15 / 20))
SILENT: Final = 1e-3
PEAK: Final = 0.99  # what a mixture that would clip is scaled to

_KEPT: Final = 32  # recordings in memory, each at most 38 MB
_STREAM: Final = 16


class Recordings:
    """The recordings in a folder and the folders in it, to draw the sources of mixtures from.

    Hidden files are left out, and of links to one file all but one.

    Args:
        folder: with WAV, Ogg or FLAC files of any rate and number of channels.
        part: ``"all"`` of them; or ``"test"``, every fourth by name, or ``"training"``, the
            others, so that no recording is heard in both.

    Raises:
        InputError: there is no such folder, or no recording in it.
    """

    def __init__(self, folder: Path, part: Part = "all") -> None:
        self.folder = Path(folder)
        check_folder(self.folder)
        found: dict[Path, Path] = {}
        for path in sorted(self.folder.rglob("*")):
            hidden = any(part[0] == "." for part in path.relative_to(self.folder).parts)
            if path.suffix.lower() in SUFFIXES and not hidden and path.is_file():
                found.setdefault(path.resolve(), path)
        paths = list(found.values())
        self.paths = {
            "all": paths,
            "test": paths[3::4],
            "training": [path for i, path in enumerate(paths) if i % 4 != 3],
        }[part]
        if not self.paths:
            raise InputError(f"{self.folder}: no recordings ({', '.join(SUFFIXES)})")
        self.silent: set[Path] = set()
        self._read = lru_cache(maxsize=_KEPT)(read_audio)

    def sources(self, seed: int, index: int, *, most: int = 4, samples: int = SAMPLES) -> Float:
        """Draw the sources of one mixture; they depend on the folder, seed and index alone.

        Their number is uniform on 1..``most``, each another recording: cut at random, or, where
        it is shorter, put at a random place in silence; scaled to an RMS while it sounds that is
        log-uniform over ``RMS``. All are scaled down together if they or their sum would clip,
        and rounded to 16 bits: the mixture is their sum, exactly. A recording that is silent
        where it is cut is passed over (``silent`` holds those).

        Args:
            seed: of the set of mixtures.
            index: of the mixture.
            most: largest number of sources.
            samples: N, at least 2048.

        Returns:
            (K, N) float32, in [-1, 1].

        Raises:
            InputError: there are too few recordings, or one cannot be read.
        """
        at_least(0, seed=seed, index=index)
        at_least(1, most=most)
        at_least(SPECTRUM, samples=samples)
        if len(self.paths) < most:
            raise InputError(
                f"{self.folder}: mixtures of up to {most} sources need as many recordings;"
                f" got {len(self.paths)}"
            )
        rng = np.random.default_rng([seed, index, _STREAM])
        number = int(rng.integers(1, most + 1))
        drawn: list[Float] = []
        for i in rng.permutation(len(self.paths)):
            source = _placed(rng, self._read(self.paths[i]), samples)
            if source is None:
                self.silent.add(self.paths[i])
            else:
                drawn.append(source)
            if len(drawn) == number:
                return _rounded(np.stack(drawn))
        raise InputError(
            f"{self.folder}: a mixture of {number} sources needs as many recordings that are not"
            f" silent; got {len(drawn)} of {len(self.paths)}"
        )


def _placed(rng: np.random.Generator, series: Float, samples: int) -> Float | None:
    """Cut or place a recording at random in (samples,), with a random RMS; None if silent."""
    offset = int(rng.integers(abs(series.size - samples) + 1))
    target = math.exp(rng.uniform(math.log(RMS[0]), math.log(RMS[1])))
    if series.size >= samples:
        series, offset = series[offset : offset + samples], 0
    level = rms(series)
    if level < SILENT:
        return None
    source = np.zeros(samples, dtype=np.float32)
    source[offset : offset + series.size] = series * (target / level)
    return source


def _rounded(sources: Float) -> Float:
    peak = max(float(np.abs(sources).max()), float(np.abs(sources.sum(axis=0)).max()))
    if peak > PEAK:
        sources = sources * np.float32(PEAK / peak)
    return np.asarray(np.rint(sources * FULL_SCALE) / FULL_SCALE, dtype=np.float32)
