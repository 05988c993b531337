"""Audio mixtures against closed forms, the definition of FUSS, and the author's own reader."""

import wave
from pathlib import Path

import numpy as np
import pytest
from evidence_depletion.data.fuss import FUSSDataset, extract_params
from hypothesis import given
from hypothesis import strategies as st

from slotflow.ablate.audio import (
    AudioMixtures,
    mix_recordings,
    read_fuss,
    source_parameters,
    write_fuss,
)
from slotflow.ablate.audio_job import AudioBudget, AudioJob
from slotflow.ablate.methods import METHODS
from slotflow.ablate.recordings import PEAK, RMS, Recordings
from slotflow.ablate.runs import run_all
from slotflow.errors import InputError, OutputExistsError
from tests.recordings import recordings_folder

N = 4096
RATE = 16_000


def tone(frequency: float, amplitude: float = 0.5, n: int = N, rate: int = RATE) -> np.ndarray:
    return (amplitude * np.sin(2 * np.pi * frequency / rate * np.arange(n))).astype(np.float32)


def write_int16(path: Path, series: np.ndarray, rate: int = RATE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.rint(32767 * series).astype("<i2").tobytes())
    return path


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve recordings, tones 500 Hz apart, longer than a mixture."""
    folder = tmp_path_factory.mktemp("tones")
    for i in range(12):
        write_int16(folder / f"{i // 6}" / f"{i}.wav", tone(500.0 * (i + 1), 0.05 * (i + 1), 8000))
    return folder


def as_author_reads(folder: Path, samples: int, most: int = 4) -> AudioMixtures:
    data = FUSSDataset(folder, "train", max_K=most, signal_length=samples)
    mixtures, parameters, number = zip(*(data[i] for i in range(len(data))), strict=True)
    stacked = [np.stack([np.asarray(x) for x in part]) for part in (mixtures, parameters, number)]
    return AudioMixtures(*stacked, skipped=0)


def assert_same(seen: AudioMixtures, expected: AudioMixtures, atol: float = 0.0) -> None:
    np.testing.assert_array_equal(seen.mixtures, expected.mixtures)
    np.testing.assert_allclose(seen.parameters, expected.parameters, rtol=0, atol=atol)
    np.testing.assert_array_equal(seen.number, expected.number)


@given(st.integers(1, 1023), st.floats(0.01, 0.9))
def test_parameters_of_a_tone(bin_number: int, amplitude: float) -> None:
    """Whole periods: one bin; its RMS is the amplitude over sqrt 2."""
    place = bin_number / 1024
    seen = source_parameters(tone(8000 * place, amplitude))
    np.testing.assert_allclose(seen, [place, min(amplitude * 2**0.5, 1), place], atol=2e-6)


def test_parameters_of_two_tones() -> None:
    """The centroid weighs with power; only the first 2048 samples count for it, all for the RMS."""
    both = tone(1000, 0.4) + tone(3000, 0.2)
    centroid = (0.16 * 1000 + 0.04 * 3000) / 0.2 / 8000
    rms = (0.1) ** 0.5 / 0.5
    np.testing.assert_allclose(source_parameters(both), [0.125, rms, centroid], atol=2e-6)
    later = both.copy()
    later[:2048] = 0.0
    np.testing.assert_allclose(source_parameters(later), [1 / 1024, rms / 2**0.5, 0.0], atol=2e-6)


def test_parameters_as_the_author_has_them() -> None:
    rng = np.random.default_rng(3)
    for scale in (1e-4, 0.05, 0.4):
        source = (scale * rng.standard_normal(N)).astype(np.float32)
        np.testing.assert_allclose(source_parameters(source), extract_params(source), atol=1e-6)
    np.testing.assert_array_equal(source_parameters(np.zeros(N, np.float32)), [1 / 1024, 0, 0])


def test_a_tree_is_read_back_and_as_the_author_reads_it(tones: Path, tmp_path: Path) -> None:
    recordings = Recordings(tones)
    drawn = [recordings.sources(5, i, samples=N) for i in range(12)]
    assert write_fuss(tmp_path / "ssdata", "train", drawn) == 12
    seen = read_fuss(tmp_path / "ssdata", "train", samples=N)
    assert_same(seen, mix_recordings(tones, 12, seed=5, samples=N))
    assert_same(seen, as_author_reads(tmp_path / "ssdata", N), atol=1e-6)
    first = read_fuss(tmp_path / "ssdata", "train", samples=2048, limit=5)
    assert_same(
        first,
        AudioMixtures(
            seen.mixtures[:5, :2048],
            as_author_reads(tmp_path / "ssdata", 2048).parameters[:5],
            seen.number[:5],
            0,
        ),
        atol=1e-6,
    )


def test_mixtures_of_other_numbers_of_sources_are_skipped(tmp_path: Path) -> None:
    sources = np.stack([tone(500 * k, 0.1) for k in range(1, 6)])
    write_fuss(tmp_path, "train", [sources[:k] for k in (1, 5, 3, 4)])
    write_int16(tmp_path / "train" / "example00009.wav", sources[0])  # no folder of sources
    seen = read_fuss(tmp_path, "train", samples=N)
    assert seen.number.tolist() == [1, 3, 4]
    assert seen.skipped == 2
    assert_same(seen, as_author_reads(tmp_path, N), atol=1e-6)
    assert read_fuss(tmp_path, "train", samples=N, most=3).number.tolist() == [1, 3]
    np.testing.assert_allclose(seen.parameters[1, :, 0], [1 / 16, 2 / 16, 3 / 16, 0], atol=1e-7)
    assert not seen.parameters[1, 3].any()
    np.testing.assert_allclose(seen.mixtures[1], sources[:3].sum(axis=0), atol=1.5 / 32768)


def test_written_to_16_bits(tmp_path: Path) -> None:
    """Within half a step each, and full scale, which 16 bits lack, one step below."""
    rng = np.random.default_rng(1)
    sources = rng.uniform(-0.3, 0.3, (3, N)).astype(np.float32)
    sources[:, 0], sources[:, 1] = (1.0, 0.0, 0.0), (-1.0, 0.0, 0.0)
    write_fuss(tmp_path, "eval", [sources])
    seen = read_fuss(tmp_path, "eval", samples=N).mixtures[0]
    np.testing.assert_allclose(seen[2:], sources.sum(axis=0)[2:], atol=1.5 / 32768 + 1e-7)
    assert seen[:2].tolist() == [32767 / 32768, -1.0]


def test_the_mixture_is_the_sum_of_its_sources(tones: Path) -> None:
    seen = mix_recordings(tones, 40, seed=2, samples=N)
    recordings = Recordings(tones)
    for i in range(40):
        sources = recordings.sources(2, i, samples=N).astype(np.float64)
        np.testing.assert_array_equal(sources.sum(axis=0), seen.mixtures[i])
        np.testing.assert_array_equal(sources * 32768, np.rint(sources * 32768))
        assert len(sources) == seen.number[i]
        for source, parameters in zip(sources, seen.parameters[i], strict=False):
            expected = extract_params(source.astype(np.float32))
            np.testing.assert_allclose(parameters, expected, atol=1e-6)
    assert np.abs(seen.mixtures).max() <= PEAK + 2 / 32768


def test_a_mixture_depends_on_seed_and_index_alone(tones: Path) -> None:
    few, many = (mix_recordings(tones, n, seed=7, samples=N) for n in (3, 20))
    np.testing.assert_array_equal(few.mixtures, many.mixtures[:3])
    np.testing.assert_array_equal(few.parameters, many.parameters[:3])
    backwards = Recordings(tones)
    for i in (19, 0, 7):
        mixture = backwards.sources(7, i, samples=N).sum(axis=0)
        np.testing.assert_array_equal(mixture, many.mixtures[i])
    assert len({m.tobytes() for m in many.mixtures}) == 20
    other = mix_recordings(tones, 3, seed=8, samples=N)
    assert not np.array_equal(other.mixtures, few.mixtures)


def test_what_is_drawn(tones: Path) -> None:
    """Numbers uniform on 1..4, distinct recordings, RMS log-uniform over its range."""
    seen = mix_recordings(tones, 800, seed=11, samples=2048)
    counts = np.bincount(seen.number, minlength=5)[1:]
    assert counts.sum() == 800
    assert ((counts - 200.0) ** 2 / 200.0).sum() < 16.3  # chi-square, 3 degrees, 0.1 %
    valid = np.arange(4) < seen.number[:, None]
    # the tones lie on bins of 2048 samples: their frequencies name the recordings
    index = np.rint(seen.parameters[..., 0] * 16).astype(int)
    assert all(len(set(i[v].tolist())) == v.sum() for i, v in zip(index, valid, strict=True))
    assert set(index[valid].tolist()) == set(range(1, 13))
    assert not seen.parameters[~valid].any()
    alone = seen.parameters[seen.number == 1, 0, 1] * 0.5  # never scaled down: peaks below 0.26
    assert RMS[0] * 0.999 < alone.min() < alone.max() < RMS[1] * 1.001
    place = np.log(alone / RMS[0]) / np.log(RMS[1] / RMS[0])
    assert abs(place.mean() - 0.5) < 4 * (1 / 12 / alone.size) ** 0.5
    assert abs(place.var() - 1 / 12) < 4 * (1 / 180 / alone.size) ** 0.5


def test_long_recordings_are_cut_and_short_ones_placed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    long, short = rng.uniform(-0.4, 0.4, 20_000), rng.uniform(-0.4, 0.4, 300)
    for name, series in (("long", long), ("short", short)):
        write_int16(tmp_path / name / "x.wav", series)
        recordings, begins = Recordings(tmp_path / name), []
        for i in range(30):
            (seen,) = recordings.sources(0, i, most=1, samples=N)
            # the lag at which they agree, and there one is the other times a factor
            wide = seen if name == "short" else series
            narrow = series if name == "short" else seen
            begins.append(int(np.argmax(np.correlate(wide, narrow))))
            piece = wide[begins[-1] : begins[-1] + narrow.size]
            assert np.corrcoef(piece, narrow)[0, 1] > 0.9999
            if name == "short":
                assert np.count_nonzero(seen) <= 300
        free = abs(series.size - N)
        assert 0 <= min(begins) < free / 4
        assert 3 * free / 4 < max(begins) <= free


def test_mixtures_that_would_clip_are_scaled(tmp_path: Path) -> None:
    """Clicks: their RMS asks for more than full scale."""
    for k in range(2):
        click = np.zeros(2000)
        click[1000 + k] = 0.9
        write_int16(tmp_path / f"{k}.wav", click)
    peaks = np.abs(mix_recordings(tmp_path, 60, seed=0, most=2, samples=N).mixtures).max(axis=1)
    assert peaks.max() == pytest.approx(PEAK, abs=1e-4)
    assert np.mean(peaks > PEAK - 1e-4) > 0.5
    assert peaks.min() > RMS[0]


def test_silent_recordings_are_passed_over(tones: Path, tmp_path: Path) -> None:
    write_int16(tmp_path / "a.wav", np.zeros(9000))
    write_int16(tmp_path / "b.wav", tone(400, 0.0005, 9000))
    with pytest.raises(InputError, match=r"not silent; got 0 of 2"):
        mix_recordings(tmp_path, 1, seed=0, most=2, samples=N)
    for i in range(2):
        write_int16(tmp_path / f"{i}.wav", tone(500 * (i + 1), 0.3, 9000))
    seen = mix_recordings(tmp_path, 30, seed=0, most=2, samples=N)
    assert seen.skipped == 2
    assert (seen.parameters[np.arange(2) < seen.number[:, None]][:, 1] > RMS[0]).all()
    assert mix_recordings(tones, 30, seed=0, samples=N).skipped == 0


def test_which_files_are_recordings(tmp_path: Path) -> None:
    kept = write_int16(tmp_path / "deep" / "er" / "a.WAV", tone(500))
    write_int16(tmp_path / "a.txt", tone(500))
    write_int16(tmp_path / "._a.wav", tone(500))
    write_int16(tmp_path / ".trash" / "a.wav", tone(500))
    (tmp_path / "x.wav").mkdir()
    (tmp_path / "gone.wav").symlink_to(tmp_path / "nothing.wav")
    assert Recordings(tmp_path).paths == [kept]
    (tmp_path / "link.wav").symlink_to(kept)
    with pytest.raises(InputError, match="up to 2 sources need as many recordings; got 1"):
        mix_recordings(tmp_path, 1, seed=0, most=2, samples=N)


def test_a_split_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    good = tone(500, 0.3)[None]
    for bad, reason in (
        (np.full((1, N), np.nan, np.float32), "4096 values not finite"),
        (np.full((2, N), 0.6, np.float32), r"in -1\.\.1; got 1\.2"),
        (np.zeros((11, N), np.float32), r"got \(11, 4096\)"),
        (np.zeros(N, np.float32), r"got \(4096,\)"),
    ):
        with pytest.raises(InputError, match=rf"train.example00001: .*{reason}"):
            write_fuss(tmp_path, "train", [good, bad])
        assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="no mixtures to write"):
        write_fuss(tmp_path, "train", [])
    write_fuss(tmp_path, "train", [good])
    with pytest.raises(OutputExistsError, match="train: exists already"):
        write_fuss(tmp_path, "train", [good * 0.5])
    assert read_fuss(tmp_path, "train", samples=N).mixtures.max() == pytest.approx(0.3, abs=1e-4)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be written"):
        write_fuss(tmp_path / "file", "train", [good])


def test_folders_and_numbers_that_cannot_be(tones: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for error, call in (
        (f"{gone}: no such folder", lambda: read_fuss(gone, "train")),
        (f"{tmp_path / 'eval'}: no such folder", lambda: read_fuss(tmp_path, "eval")),
        ("expected one of train, validation, eval; got 'test'", lambda: read_fuss(gone, "test")),
        (f"{gone}: no such folder", lambda: mix_recordings(gone, 1, seed=0)),
        (f"{tmp_path}: no recordings", lambda: mix_recordings(tmp_path, 1, seed=0)),
        ("number: expected at least 1; got 0", lambda: mix_recordings(tones, 0, seed=0)),
        ("seed: expected at least 0; got -1", lambda: mix_recordings(tones, 1, seed=-1)),
        ("most: expected at least 1; got 0", lambda: mix_recordings(tones, 1, seed=0, most=0)),
        ("samples: expected at least 2048; got 9", lambda: read_fuss(gone, "eval", samples=9)),
        ("limit: expected at least 1; got 0", lambda: read_fuss(gone, "eval", limit=0)),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert error in str(caught.value)
    (tmp_path / "train").mkdir()
    write_int16(tmp_path / "train" / "example0.wav", tone(500))
    with pytest.raises(InputError, match=r"train: no example\*\.wav with 1 to 4 .*\(1 with none"):
        read_fuss(tmp_path, "train")


@pytest.mark.parametrize("name", ["example00001.wav", "example00001_sources/foreground0_sound.wav"])
def test_fuss_files_that_cannot_be(tmp_path: Path, name: str) -> None:
    write_fuss(tmp_path, "train", [np.stack([tone(500, 0.1), tone(900, 0.1)])] * 2)
    path = tmp_path / "train" / name
    write_int16(path, tone(500)[: N - 1])
    with pytest.raises(InputError, match=rf"{name}: length: .* 4096 samples .*; got 4095"):
        read_fuss(tmp_path, "train", samples=N)
    assert read_fuss(tmp_path, "train", samples=N, limit=1).number.tolist() == [2]
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(InputError, match=rf"{name}: (cannot be read as audio|empty)"):
        read_fuss(tmp_path, "train", samples=N)


def test_a_tree_of_real_recordings(tmp_path: Path) -> None:
    folder = recordings_folder()
    mixed = mix_recordings(folder, 16, seed=1)
    assert mixed.mixtures.shape == (16, 64_000)
    assert np.isfinite(mixed.mixtures).all()
    assert np.abs(mixed.mixtures).max() <= 1.0
    assert set(mixed.number.tolist()) == {1, 2, 3, 4}
    assert mixed.parameters.min() >= 0.0
    assert mixed.parameters.max() <= 1.0
    assert (mixed.parameters[..., 1] > 0).sum(axis=1).tolist() == mixed.number.tolist()
    recordings = Recordings(folder)
    write_fuss(tmp_path, "train", (recordings.sources(1, i) for i in range(16)))
    seen = read_fuss(tmp_path, "train")
    assert_same(seen, mixed)
    assert_same(seen, as_author_reads(tmp_path, 64_000), atol=1e-6)


def test_parameters_from_the_onset_do_not_depend_on_the_place() -> None:
    series = np.sin(2.0 * np.pi * 1000.0 / RATE * np.arange(3000)).astype(np.float32)
    early, late = np.zeros((2, 10_000), dtype=np.float32)
    early[:3000], late[5000:8000] = series, series
    assert source_parameters(late)[0] < 0.001  # nothing has begun in the first samples
    # sin(0) = 0: the onset is the tone's second sample
    np.testing.assert_allclose(
        source_parameters(late, True), source_parameters(early, True), rtol=1e-5
    )
    assert source_parameters(late, True)[0] == pytest.approx(0.125, abs=1.0 / 2048)


def test_training_and_test_share_no_recording(tones: Path) -> None:
    paths = {part: Recordings(tones, part).paths for part in ("all", "training", "test")}
    assert not set(paths["training"]) & set(paths["test"])
    assert sorted(paths["training"] + paths["test"]) == sorted(paths["all"])


def test_a_run_on_real_recordings(tmp_path: Path) -> None:
    budget = AudioBudget(training=24, test=12, epochs=2, batch=8, samples=32_000)
    job = AudioJob("linear", 1, METHODS["linear"], recordings_folder(), True, budget)
    assert job.task == "recordings"
    (record,) = run_all(tmp_path, [job], 1)
    assert record["training"] == 24
    assert np.isfinite(list(record["recovery"].values())).all()
    assert 0.0 <= record["peak_overlap"] <= 1.0
    attention = np.array(record["examples"][0]["attention"])
    assert attention.shape == (5, 32)
    np.testing.assert_allclose(attention.sum(axis=1), 1.0, atol=1e-3)


def test_a_run_on_a_tree_like_that_of_fuss(tmp_path: Path) -> None:
    recordings = Recordings(recordings_folder())
    for split, number in (("train", 16), ("eval", 8)):
        sources = (recordings.sources(len(split), i, samples=16_000) for i in range(number))
        write_fuss(tmp_path / "ssdata", split, sources)
    budget = AudioBudget(training=100, test=100, epochs=1, batch=8, samples=16_000)
    job = AudioJob("vanilla", 1, METHODS["vanilla"], tmp_path / "ssdata", False, budget)
    found = job.work()
    assert (job.task, found["training"], found["test"]) == ("fuss", 16, 8)
