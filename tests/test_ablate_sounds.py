"""Sound files: resampling against closed forms, and headers that promise anything."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from slotflow.ablate.sounds import read_audio, rms, write_wave
from slotflow.errors import InputError
from tests.recordings import recordings_folder


def write_tone(path: Path, frequency: float, rate: int, seconds: float = 1.0) -> Path:
    t = np.arange(int(rate * seconds)) / rate
    soundfile.write(path, 0.5 * np.sin(2 * np.pi * frequency * t), rate)
    return path


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000, 96000])
def test_resampling_keeps_a_tone(tmp_path: Path, rate: int) -> None:
    """Frequency, amplitude and phase: the samples are those of the tone at 16 kHz."""
    seen = read_audio(write_tone(tmp_path / "a.wav", 1000.0, rate))
    assert seen.dtype == np.float32
    assert seen.size == 16000
    expected = 0.5 * np.sin(2 * np.pi * 1000.0 * np.arange(16000) / 16000)
    inside = slice(200, -200)  # away from the ends
    np.testing.assert_allclose(seen[inside], expected[inside], atol=2e-3)


def test_resampling_does_not_alias(tmp_path: Path) -> None:
    """12 kHz lies above the Nyquist frequency of 16 kHz, and would be heard at 4 kHz."""
    seen = read_audio(write_tone(tmp_path / "a.wav", 12000.0, 44100))[200:-200]
    assert rms(seen) < 0.002 * 0.5


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_channels_are_averaged(tmp_path: Path, suffix: str) -> None:
    t = np.arange(16000) / 16000
    left, right = np.sin(2 * np.pi * 500 * t), np.sin(2 * np.pi * 1500 * t)
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, 0.5 * np.stack([left, right], axis=1), 16000)
    tolerance = 0.05 if suffix == "ogg" else 3e-5  # Vorbis loses some
    np.testing.assert_allclose(read_audio(path), 0.25 * (left + right), atol=tolerance)
    soundfile.write(tmp_path / "b.wav", np.stack([left, -left], axis=1) * 0.5, 16000)
    assert np.abs(read_audio(tmp_path / "b.wav")).max() < 2e-5


def test_16_bits_there_and_back(tmp_path: Path) -> None:
    series = np.arange(-32768, 32768).astype("<i2")
    write_wave(tmp_path / "a.wav", series)
    np.testing.assert_array_equal(read_audio(tmp_path / "a.wav") * 32768, series)
    assert soundfile.info(tmp_path / "a.wav").subtype == "PCM_16"


def test_files_that_are_no_recordings(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with pytest.raises(InputError, match=r"a\.wav: cannot be read as audio"):
        read_audio(path)
    for content in (b"", b"RIFF", b"no audio at all" * 99):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.wav: cannot be read as audio"):
            read_audio(path)
    soundfile.write(path, np.zeros(0), 16000)
    with pytest.raises(InputError, match=r"a\.wav: empty"):
        read_audio(path)
    soundfile.write(path, np.zeros(100), 1000)
    with pytest.raises(InputError, match=r"a\.wav: rate: .*; got 1000"):
        read_audio(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_samples_that_are_no_numbers(tmp_path: Path, bad: float) -> None:
    series = np.zeros((100, 2))
    series[[3, 50], 1] = bad
    soundfile.write(tmp_path / "a.wav", series, 16000, subtype="FLOAT")
    with pytest.raises(InputError, match=r"a\.wav: 2 of 100 samples are not finite or beyond"):
        read_audio(tmp_path / "a.wav")


@pytest.mark.parametrize("frames", [2**36 - 1, 16000 * 600 + 1, 16000])
def test_a_header_that_promises_too_much(tmp_path: Path, frames: int) -> None:
    """FLAC states its length in 36 bits, which nothing in the file need bear out."""
    path = tmp_path / "a.flac"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, 8000), 16000)
    content = bytearray(path.read_bytes())
    field = slice(21, 26)  # 4 bits of the sample size, then the length
    assert int.from_bytes(content[field]) & (2**36 - 1) == 8000
    content[field] = (int.from_bytes(content[field]) >> 36 << 36 | frames).to_bytes(5)
    path.write_bytes(content)
    reason = "(truncated|cannot be read)" if frames == 16000 else f"length: .*got {frames} samples"
    with pytest.raises(InputError, match=rf"a\.flac: {reason}"):
        read_audio(path)


def test_long_recordings_are_refused(tmp_path: Path) -> None:
    """Before they are read: what a hole in the file stands for would be 2 GB."""
    path = tmp_path / "a.wav"
    write_wave(path, np.zeros(10, "<i2"))
    content = bytearray(path.read_bytes())
    content[4:8], content[40:44] = (2**30 + 36).to_bytes(4, "little"), (2**30).to_bytes(4, "little")
    path.write_bytes(content)
    with path.open("rb+") as file:
        file.truncate(2**30 + 44)
    with pytest.raises(InputError, match=r"a\.wav: length: at most 600 s .* got 536870912 samples"):
        read_audio(path)


def test_real_recordings_are_read() -> None:
    """Those of Debian's packages: WAV and Vorbis, of one and two channels, of several rates."""
    files = [p for p in sorted(recordings_folder().rglob("*.*")) if p.suffix in (".wav", ".oga")]
    assert files
    for path in files[:20]:
        series = read_audio(path)
        assert np.isfinite(series).all()
        assert series.size / 16000 == pytest.approx(soundfile.info(path).duration, abs=1 / 16000)
        assert rms(series) < 1.0
