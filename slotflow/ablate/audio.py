"""Mixtures of recorded sounds: the FUSS data set, and mixtures like its own of any recordings.

FUSS (Wisdom et al. 2021) holds sums of 1-4 everyday sounds at 16 kHz in 16 bits, in the folders
of its ``ssdata`` release::

    <folder>/<train, validation or eval>/
        example00000.wav  example00000_sources/{background0,foreground0,...}_sound.wav

Parameters of a source are those of arXiv:2605.02323, each in [0, 1]: the dominant frequency, the
RMS as min(RMS / 0.5, 1), and the spectral centroid; frequencies over the Nyquist frequency, and
of the first 2048 samples (0.128 s) alone. A source that begins later than those has the first
bin and 0 for its frequencies: so the definition has it, and results compare with it.
"""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.ablate.recordings import Part, Recordings
from slotflow.ablate.sounds import (
    FULL_SCALE,
    RATE,
    SAMPLES,
    SPECTRUM,
    at_least,
    check_folder,
    read_audio,
    rms,
    write_wave,
)
from slotflow.errors import InputError, OutputExistsError

Float = NDArray[np.float32]

SPLITS: Final = ("train", "validation", "eval")
_MOST_WRITTEN: Final = 10  # one digit, so that the names of the sources sort


@dataclass(frozen=True)
class AudioMixtures:
    """M mixtures of up to K sources, N samples each at 16 kHz.

    Attributes:
        mixtures: (M, N) float32 in [-1, 1].
        parameters: (M, K, 3) float32 in [0, 1], zero beyond ``number``:
            frequency, RMS, centroid.
        number: (M,) int64, 1..K.
        skipped: mixtures passed over, of no or more than K sources (:func:`read_fuss`), or
            recordings passed over, silent where drawn (:func:`mix_recordings`).
    """

    mixtures: Float
    parameters: Float
    number: NDArray[np.int64]
    skipped: int


def source_parameters(source: Float, from_onset: bool = False) -> Float:
    """Return dominant frequency, RMS and spectral centroid, scaled to [0, 1], of one source.

    Args:
        source: (N,) float32, N at least 2.
        from_onset: the spectrum is that of the samples from the first sound on.

    Returns:
        (3,) float32.
    """
    # in single precision, as published: rounding decides where an almost flat spectrum peaks
    onset = int(np.argmax(source != 0.0)) if from_onset else 0
    start = source[max(0, min(onset, source.size - SPECTRUM)) :][:SPECTRUM]
    spectrum = np.abs(np.fft.rfft(start))
    scale = 2.0 * np.fft.rfftfreq(start.size)
    frequency = scale[1 + np.argmax(spectrum[1:])]
    power = spectrum.astype(np.float64) ** 2
    total = power.sum()
    centroid = scale @ power / total if total > 0.0 else 0.0
    return np.array([frequency, min(rms(source) / 0.5, 1.0), centroid], dtype=np.float32)


def read_fuss(
    folder: Path, split: str, *, most: int = 4, samples: int = SAMPLES, limit: int | None = None
) -> AudioMixtures:
    """Read the first mixtures, by name, of a split of FUSS, each cut to its first samples.

    Mixtures of no or more than ``most`` sources are skipped. Files of another rate are resampled.

    Args:
        folder: the ``ssdata`` folder.
        split: ``train``, ``validation`` or ``eval``.
        most: sources in a mixture, K.
        samples: N, at least 2048.
        limit: read no more mixtures than this; None: all.

    Raises:
        InputError: there is no such folder, split or mixture, or a file cannot be used
            (:func:`read_audio`) or has fewer than ``samples`` samples.
    """
    at_least(1, most=most, limit=1 if limit is None else limit)
    at_least(SPECTRUM, samples=samples)
    found, skipped = _list_fuss(_split_folder(folder, split), most, limit)
    record = _empty(len(found), most, samples, skipped)
    for i, (path, sources) in enumerate(found):
        record.mixtures[i] = _read_start(path, samples)
        for k, source in enumerate(sources):
            record.parameters[i, k] = source_parameters(_read_start(source, samples))
        record.number[i] = len(sources)
    return record


def _split_folder(folder: Path, split: str) -> Path:
    if split not in SPLITS:
        raise InputError(f"{folder}: split: expected one of {', '.join(SPLITS)}; got {split!r}")
    return Path(folder) / split


def _list_fuss(
    folder: Path, most: int, limit: int | None
) -> tuple[list[tuple[Path, list[Path]]], int]:
    """Return the mixtures with their sources, and how many were passed over on the way."""
    check_folder(folder.parent)
    check_folder(folder)
    found: list[tuple[Path, list[Path]]] = []
    skipped = 0
    for path in sorted(p for p in folder.glob("example*.wav") if p.is_file()):
        if len(found) == limit:
            break
        sources = sorted((folder / f"{path.stem}_sources").glob("*.wav"))
        if 1 <= len(sources) <= most:
            found.append((path, sources))
        else:
            skipped += 1
    if not found:
        raise InputError(
            f"{folder}: no example*.wav with 1 to {most} sources in example*_sources"
            f" ({skipped} with none or more)"
        )
    return found, skipped


def _read_start(path: Path, samples: int) -> Float:
    series = read_audio(path)
    if series.size < samples:
        raise InputError(
            f"{path}: length: expected at least {samples} samples at {RATE} Hz; got {series.size}"
        )
    return series[:samples]


def _empty(count: int, most: int, samples: int, skipped: int) -> AudioMixtures:
    return AudioMixtures(
        mixtures=np.zeros((count, samples), dtype=np.float32),
        parameters=np.zeros((count, most, 3), dtype=np.float32),
        number=np.zeros(count, dtype=np.int64),
        skipped=skipped,
    )


def mix_recordings(
    folder: Path,
    number: int,
    *,
    seed: int,
    most: int = 4,
    samples: int = SAMPLES,
    part: Part = "all",
    from_onset: bool = False,
) -> AudioMixtures:
    """Make mixtures like those of FUSS of the recordings in a folder.

    Args:
        folder: of the recordings (:class:`Recordings`).
        number: of mixtures, M.
        seed: mixture i depends on the folder, (seed, i) and the two below alone.
        most: sources in a mixture, K; their number is uniform on 1..K.
        samples: N, at least 2048.
        part: of the recordings (:class:`Recordings`).
        from_onset: take frequency and centroid of the samples from a source's first sound on;
            else, as for FUSS, of the first of all, in which a short recording is mostly silent.

    Raises:
        InputError: as :class:`Recordings` and its ``sources``.
    """
    at_least(1, number=number, most=most)
    at_least(SPECTRUM, samples=samples)
    recordings = Recordings(folder, part)
    record = _empty(number, most, samples, 0)
    for i in range(number):
        sources = recordings.sources(seed, i, most=most, samples=samples)
        record.mixtures[i] = sources.sum(axis=0)
        record.parameters[i, : len(sources)] = [source_parameters(s, from_onset) for s in sources]
        record.number[i] = len(sources)
    return AudioMixtures(record.mixtures, record.parameters, record.number, len(recordings.silent))


def write_fuss(folder: Path, split: str, mixtures: Iterable[Float]) -> int:
    """Write mixtures as a split of FUSS: 16 bits at 16 kHz, whole or not at all.

    Args:
        folder: made if need be.
        split: ``train``, ``validation`` or ``eval``.
        mixtures: the sources of each, (K, N), K = 1..10; the mixture is their sum, and neither
            may leave [-1, 1].

    Returns:
        The number of mixtures written.

    Raises:
        InputError: the sources cannot be written so, or the system refuses to write.
        OutputExistsError: the split exists.
    """
    place = _split_folder(folder, split)
    if place.exists():
        raise OutputExistsError(f"{place}: exists already")
    temporary = place.with_name(f".{split}.{os.getpid()}.tmp")
    count = 0
    try:
        temporary.mkdir(parents=True)
        for sources in mixtures:
            name = f"example{count:05d}"
            _write_mixture(temporary, name, _to_pcm(place / name, sources))
            count += 1
        if not count:
            raise InputError(f"{place}: no mixtures to write")
        temporary.rename(place)
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return count


def _to_pcm(name: Path, sources: Float) -> NDArray[np.int16]:
    """Return the sources and, last, their sum in 16 bits: (K + 1, N)."""
    if sources.ndim != 2 or not 1 <= len(sources) <= _MOST_WRITTEN or not sources.size:
        raise InputError(
            f"{name}: sources: expected (1 to {_MOST_WRITTEN}, samples); got {sources.shape}"
        )
    if not np.isfinite(sources).all():
        raise InputError(f"{name}: sources: {np.sum(~np.isfinite(sources))} values not finite")
    exact = np.rint(sources.astype(np.float64) * FULL_SCALE)
    exact = np.concatenate([exact, exact.sum(axis=0, keepdims=True)])
    if np.abs(exact).max() > FULL_SCALE:
        largest = float(np.abs(exact).max()) / FULL_SCALE
        raise InputError(f"{name}: sources and their sum must be in -1..1; got {largest:g}")
    return np.minimum(exact, FULL_SCALE - 1.0).astype("<i2")


def _write_mixture(folder: Path, name: str, pcm: NDArray[np.int16]) -> None:
    inner = folder / f"{name}_sources"
    inner.mkdir()
    for k, series in enumerate(pcm[:-1]):
        label = f"foreground{k - 1}" if k else "background0"
        write_wave(inner / f"{label}_sound.wav", series)
    write_wave(folder / f"{name}.wav", pcm[-1])
