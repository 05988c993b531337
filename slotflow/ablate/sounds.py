"""Sound files: recordings of any common kind as one channel at 16 kHz, and 16-bit WAV."""

import math
import wave
from pathlib import Path
from typing import Final

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy.signal import resample_poly

from slotflow.errors import InputError

Float = NDArray[np.float32]

RATE: Final = 16_000  # samples per s of all that is read and written
SAMPLES: Final = 64_000  # of a mixture: 4 s
SPECTRUM: Final = 2048  # samples that the frequencies of a source are of
FULL_SCALE: Final = 32768.0  # of 16 bits
LARGEST: Final = 1e6  # of a sample, where full scale is 1

#: What is read at all, so that a header cannot ask for any amount of memory.
MAX_SECONDS: Final = 600
MAX_NUMBERS: Final = 2**26  # frames times channels
RATES: Final = (4_000, 384_000)


def read_audio(path: Path) -> Float:
    """Read a recording as one channel (the mean of its channels) at 16 kHz.

    Returns:
        (n,) float32.

    Raises:
        InputError: the file is missing, no audio, empty, shorter than it says, too long
            (``MAX_SECONDS``, ``MAX_NUMBERS``), of a rate outside ``RATES``, or holds samples
            that are not finite or beyond ``LARGEST``.
    """
    try:
        with soundfile.SoundFile(path) as file:
            _check_header(path, file.frames, file.channels, file.samplerate)
            rate, frames = int(file.samplerate), int(file.frames)
            series = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise InputError(f"{path}: cannot be read as audio: {error.error_string}") from error
    if len(series) != frames:
        raise InputError(f"{path}: truncated: expected {frames} samples; got {len(series)}")
    good = np.abs(series) <= LARGEST  # false of NaN
    if not good.all():
        bad = int(np.count_nonzero(~good.all(axis=1)))
        raise InputError(
            f"{path}: {bad} of {frames} samples are not finite or beyond {LARGEST:g} of full scale"
        )
    mono = series.mean(axis=1, dtype=np.float64)
    if rate != RATE:
        common = math.gcd(RATE, rate)
        mono = resample_poly(mono, RATE // common, rate // common)
    return np.asarray(mono, dtype=np.float32)


def _check_header(path: Path, frames: int, channels: int, rate: int) -> None:
    if not RATES[0] <= rate <= RATES[1]:
        raise InputError(f"{path}: rate: expected {RATES[0]} to {RATES[1]} Hz; got {rate}")
    if frames < 1:
        raise InputError(f"{path}: empty: no samples")
    if frames > MAX_SECONDS * rate or frames * channels > MAX_NUMBERS:
        raise InputError(
            f"{path}: length: at most {MAX_SECONDS} s and {MAX_NUMBERS} numbers are read;"
            f" got {frames} samples at {rate} Hz in {channels} channels"
        )


def write_wave(path: Path, series: NDArray[np.int16]) -> None:
    """Write one channel (n,) of little-endian 16-bit samples at 16 kHz.

    Raises:
        OSError: the system refuses to write.
    """
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, series.size, "NONE", "not compressed"))
        file.writeframes(series.tobytes())


def rms(series: Float) -> float:
    """Return the root of the mean square."""
    return math.sqrt(float(np.mean(series.astype(np.float64) ** 2)))


def at_least(lowest: int, **numbers: int) -> None:
    """Raise an InputError that names the first of the numbers below ``lowest``."""
    for name, value in numbers.items():
        if value < lowest:
            raise InputError(f"{name}: expected at least {lowest}; got {value}")


def check_folder(folder: Path) -> None:
    """Raise an InputError unless this is a folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
