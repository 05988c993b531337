"""The comparison of slot mechanisms: the author's package is the oracle for data and network."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from evidence_depletion import metrics as their_metrics
from evidence_depletion import training as theirs
from evidence_depletion.data.synthetic import TASKS
from evidence_depletion.models import build_model
from hypothesis import given, settings
from hypothesis import strategies as st

from slotflow.ablate.decomposition import (
    Decomposed,
    Examples,
    Schedule,
    Shape,
    build,
    chunks,
    coverage_penalty,
    decompose,
    fit,
    objective,
)
from slotflow.ablate.figures import collapse, looks, write_figures
from slotflow.ablate.methods import METHODS
from slotflow.ablate.mixtures import KINDS, NAMES, Kind, make_mixtures
from slotflow.ablate.runs import KEYS, path_of, run_all
from slotflow.ablate.scores import recovery, score
from slotflow.ablate.synthetic import Budget, SyntheticJob
from slotflow.ablate.table import columns, markdown
from slotflow.cli.ablate import ablate
from slotflow.errors import InputError, NonFiniteError, OutputExistsError

THEIR_NAMES: dict[Kind, str] = {
    "sinusoids": "sinusoids",
    "bumps": "gaussian_bumps",
    "multiscale": "multiscale",
}
TINY = Budget(training=256, test=64, epochs=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 10_003])
def test_mixtures_are_the_authors(kind: Kind, seed: int) -> None:
    ours = make_mixtures(kind, 40, seed)
    signals, parameters, number, sources = TASKS[THEIR_NAMES[kind]]["generate"](40, seed=seed)
    assert torch.equal(ours.number, number)
    assert torch.equal(ours.parameters, parameters)
    # theirs compute the phase in single precision
    torch.testing.assert_close(ours.sources, sources, rtol=0, atol=3e-4)
    torch.testing.assert_close(ours.signals, signals, rtol=0, atol=3e-4)
    assert tuple(TASKS[THEIR_NAMES[kind]]["param_names"])[-1] in (NAMES[kind][-1], "width")


def test_one_source_is_dominant_and_noise_has_its_level() -> None:
    drawn = make_mixtures("sinusoids", 2000, 1)
    amplitude = drawn.parameters[..., 1]
    assert ((amplitude[:, 0] >= 5) & (amplitude[:, 0] <= 10)).all()
    present = torch.arange(4)[None] < drawn.number[:, None]
    assert (amplitude[:, 1:][present[:, 1:]] <= 1.0).all()
    noise = drawn.signals - drawn.sources.sum(1)
    assert noise.std().item() == pytest.approx(0.1, rel=0.01)
    assert torch.bincount(drawn.number)[1:].float().std() < 60  # each number alike


def test_wrong_mixtures_are_named() -> None:
    with pytest.raises(ValueError, match="kind: expected one of sinusoids"):
        make_mixtures("squares", 2, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="least"):
        make_mixtures("bumps", 2, 1, least=3, most=2)
    with pytest.raises(ValueError, match="16 samples cannot be cut into 5"):
        chunks(torch.zeros(1, 16), 5, "fft")


THEIR_METHODS = {"linear": "evidence_linear", "vanilla": "vanilla", "sequential": "sequential"}
RENAMED = {"tokenizer.proj": "embed", "slot_attn": "slots", "exist_head": "exists",
           "param_head": "read"}  # fmt: skip


@pytest.mark.parametrize("method", THEIR_METHODS)
@pytest.mark.parametrize("kind", ["sinusoids", "bumps"])
def test_the_network_is_the_authors(method: str, kind: Kind) -> None:
    their_tokens = "fft" if kind == "sinusoids" else "direct"
    torch.manual_seed(3)
    oracle = build_model(THEIR_METHODS[method], n_params=3, tokenizer_type=their_tokens).eval()
    features = chunks(
        make_mixtures(kind, 6, 1).signals, 16, "fft" if kind == "sinusoids" else "samples"
    )
    ours = build(features.shape[2], Shape(), METHODS[method], 1).eval()
    weights = {
        next(name.replace(a, b, 1) for a, b in RENAMED.items() if name.startswith(a)): value
        for name, value in oracle.state_dict().items()
    }
    ours.load_state_dict(weights, strict=True)
    torch.manual_seed(5)
    wanted = oracle(make_mixtures(kind, 6, 1).signals)
    got = ours(features, torch.Generator().manual_seed(5))
    for mine, other in zip((got.slots, got.attention, got.existence, got.parameters),
                           wanted[:4], strict=True):  # fmt: skip
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-5)


def random_found(seed: int, batch: int = 7, slots: int = 5, most: int = 4) -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(seed)
    found = Decomposed(
        torch.randn(batch, slots, 8, generator=g),
        torch.rand(batch, slots, 16, generator=g),
        torch.ones(batch, slots + 1, 16),
        torch.randn(batch, slots, generator=g),
        torch.randn(batch, slots, 3, generator=g),
    )
    number = torch.randint(0, most + 1, (batch,), generator=g)
    parameters = torch.randn(batch, most, 3, generator=g)
    parameters[torch.arange(most)[None] >= number[:, None]] = 0.0
    return found, parameters, number


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**31))
def test_objective_and_scores_are_the_authors(seed: int) -> None:
    found, parameters, number = random_found(seed)
    their_output = (found.slots, found.attention, found.existence, found.parameters, None)
    wanted = theirs.training_loss(
        their_output, parameters, number, 5, torch.device("cpu"), w_div=0.5, w_coverage=0.7
    )
    torch.testing.assert_close(objective(found, parameters, number, 0.7), wanted)
    torch.testing.assert_close(
        coverage_penalty(found.attention), theirs.coverage_penalty(found.attention)
    )
    if not number.any():
        return
    errors = recovery(found.parameters, found.existence, parameters, number)
    exact, pairs = their_metrics.param_mae_exact(
        found.parameters, parameters, found.existence, number, 3
    )
    assert pairs == int(number.sum())
    torch.testing.assert_close(errors.float(), exact)


def test_the_gradient_goes_to_the_matched_slots() -> None:
    found, parameters, number = random_found(4)
    predicted = found.parameters.clone().requires_grad_()
    objective(found._replace(parameters=predicted), parameters, number, 0.0).backward()
    assert predicted.grad is not None
    moved = predicted.grad.abs().sum(-1) > 0
    assert torch.equal(moved.sum(1), number)
    likeliest = found.existence.argsort(dim=1, descending=True).argsort(dim=1) < number[:, None]
    assert torch.equal(moved, likeliest)


def examples_of(count: int, seed: int) -> Examples:
    drawn = make_mixtures("sinusoids", count, seed)
    return Examples(chunks(drawn.signals, 16, "fft"), drawn.parameters, drawn.number)


def test_training_lowers_the_loss_and_repeats() -> None:
    data = examples_of(256, 1)
    networks = [build(18, Shape(), METHODS["linear"], 1) for _ in range(2)]
    before = decompose(networks[0], data, 1)
    for network in networks:
        fit(network, data, Schedule(epochs=6, batch=64, learning_rate=3e-3), 1)
    first, second = (decompose(network, data, 1) for network in networks)
    assert torch.equal(first.parameters, second.parameters)
    start = objective(before, data.parameters, data.number, 0.0)
    assert objective(first, data.parameters, data.number, 0.0) < 0.7 * start


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    data = examples_of(128, 1)
    data.features[100] = torch.inf
    network = build(18, Shape(), METHODS["linear"], 1)
    with pytest.raises(NonFiniteError, match="epoch 0, batch 0"):
        fit(network, data, Schedule(epochs=1, batch=128), 1)
    with pytest.raises(ValueError, match="at least 200 examples; got 128"):
        fit(network, data, Schedule(batch=200), 1)


def test_perfect_slots_score_perfectly_and_controls_do_not() -> None:
    data = examples_of(64, 2)
    network = build(18, Shape(), METHODS["vanilla"], 1)
    found = decompose(network, data, 1)
    slot = torch.arange(5)[None] < data.number[:, None]
    attention = torch.zeros(64, 5, 16)
    attention[:, torch.arange(5), torch.arange(5)] = 1.0
    perfect = found._replace(
        attention=attention,
        existence=torch.where(slot, 3.0, -3.0),
        parameters=torch.nn.functional.pad(data.parameters, (0, 0, 0, 1)),
    )
    figures = score(network, perfect, data, NAMES["sinusoids"])
    assert figures["peak_overlap"] == figures["cosine_overlap"] == 0.0
    assert figures["k_exact"] == figures["existence"] == 1.0
    assert max(figures["recovery"].values()) == 0.0
    assert figures["recovery_one_slot"]["amplitude"] > 1.0  # one amplitude for all sources
    assert figures["recovery_mean_slot"]["amplitude"] > 1.0
    # K = 2, 3, 4 of 16 tokens: 1/16, 1 - 15/16 14/16, ...
    assert 1 / 16 < figures["chance"] < 1 - 15 / 16 * 14 / 16 * 13 / 16


@dataclass(frozen=True)
class FakeJob:
    """Stands for a run where only the folder matters."""

    task: str
    method: str
    seed: int
    settings: dict[str, Any]
    fail: bool = False

    def work(self) -> dict[str, Any]:
        if self.fail:
            raise RuntimeError("broken")
        return {"peak_overlap": 0.1 * self.seed, "chance": 0.2, "extra": self.seed}


def test_runs_are_kept_resumed_and_refused(tmp_path: Path) -> None:
    jobs = [FakeJob("t", "a b", seed, {"epochs": 2}) for seed in range(3)]
    broken = FakeJob("t", "a b", 3, {"epochs": 2}, fail=True)
    with pytest.raises(RuntimeError, match="broken"):
        run_all(tmp_path, [*jobs, broken], 1)
    assert all(path_of(tmp_path, job).exists() for job in jobs)  # what was done stays
    first = path_of(tmp_path, jobs[0])
    assert first.name == "t.a-b.seed0.json"
    kept = json.loads(first.read_text())
    first.write_text(json.dumps(kept | {"extra": 99}))
    seen: list[int] = []
    records = run_all(tmp_path, jobs, 1, lambda done, total, name: seen.append(done))
    assert not seen  # nothing was left to do
    assert [record["extra"] for record in records] == [99, 1, 2]
    listed = json.loads((tmp_path / "results.json").read_text())
    assert all(set(KEYS) <= record.keys() for record in listed)
    assert "settings" not in listed[0]
    with pytest.raises(OutputExistsError, match="a run with epochs 2, now 5"):
        run_all(tmp_path, [FakeJob("t", "a b", 0, {"epochs": 5})], 1)
    first.write_text("{")
    with pytest.raises(InputError, match="not the record of a run"):
        run_all(tmp_path, jobs, 1)


def records_of(**values: float) -> list[dict[str, Any]]:
    return [
        {"task": "t", "method": method, "seed": seed, "chance": 0.2, "nested": {"x": 1.0 + seed},
         "peak_overlap": value + 0.1 * seed,
         "examples": [{"number": 2, "attention": [[0.0] * 4, [2.0, 0.0, 0.0, 2.0]],
                       "evidence": [[1.0] * 4] * 3}]}
        for method, value in values.items()
        for seed in range(2)
    ]  # fmt: skip


def test_the_table_has_means_and_deviations() -> None:
    text = markdown(records_of(linear=0.1, vanilla=0.4), ("peak_overlap", "nested.x", "missing"))
    rows = text.splitlines()
    assert rows[0] == "| task | method | seeds | peak_overlap | nested.x | missing |"
    assert rows[2] == "| t | linear | 2 | 0.150 ± 0.050 | 1.50 ± 0.50 | - |"
    assert rows[3].startswith("| t | vanilla | 2 | 0.450 ± 0.050 |")
    assert columns(records_of(linear=0.1)) == ["chance", "nested.x", "peak_overlap"]


def test_pictures_show_the_records(tmp_path: Path) -> None:
    records = records_of(linear=0.1, vanilla=0.4)
    (axis,) = collapse(records).axes
    assert [bar.get_height() for bar in axis.patches] == pytest.approx([0.15, 0.45])
    figure = looks(records, "attention")
    images = [axis.images[0].get_array() for axis in figure.axes[:2]]
    assert images[0] is not None
    assert images[0][1].tolist() == [0.5, 0.0, 0.0, 0.5]  # each slot's weights over tokens
    assert not images[0][0].any()
    records[0]["examples"][0]["evidence"][2][1] = 0.5  # the first method alone depletes
    *depleting, bar = looks(records, "evidence").axes
    assert [axis.get_ylabel() for axis in depleting] == ["linear"]
    assert bar.get_ylabel() == "evidence"
    paths = write_figures(records, tmp_path)
    assert [path.name for path in paths] == ["collapse.png", "attention-t.png", "evidence-t.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_a_run_gives_the_same_in_another_process(tmp_path: Path) -> None:
    job = SyntheticJob("bumps", "linear", 2, METHODS["linear"], TINY)
    here = job.work()
    other = SyntheticJob("bumps", "linear", 3, METHODS["linear"], TINY)
    there, _ = run_all(tmp_path, [job, other], 2)
    for name in ("peak_overlap", "recovery", "examples", "k_exact"):
        assert there[name] == json.loads(json.dumps(here[name])), name
    assert len(here["examples"]) == 3
    evidence = torch.tensor(here["examples"][0]["evidence"])
    assert (evidence.diff(dim=0) <= 0).all()
    assert evidence.shape == (6, 16)


def test_wrong_names_are_refused() -> None:
    runner = CliRunner()
    for arguments, text in (
        (["synthetic", "--methods", "magic"], "'magic'; known: vanilla, sequential"),
        (["synthetic", "--tasks", ","], "none given"),
        (["lisa", "--kinds", "cubic"], "'cubic'; known: vanilla"),
    ):
        result = runner.invoke(ablate, arguments)
        assert result.exit_code == 2
        assert text in result.output


def test_the_command_writes_all_and_does_nothing_twice(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = [
        "synthetic", "--tasks", "bumps", "--methods", "vanilla", "--epochs", "1", "--seeds", "1",
        "--workers", "1", "-o", str(folder),
    ]  # fmt: skip
    first = CliRunner().invoke(ablate, arguments)
    assert first.exit_code == 0, first.output
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "bumps.vanilla.seed0.json", "results.json", "table.md", "collapse.png",
        "attention-bumps.png", "evidence-bumps.png",
    }  # fmt: skip
    run = folder / "runs" / "bumps.vanilla.seed0.json"
    before = run.stat().st_mtime_ns
    assert CliRunner().invoke(ablate, arguments).exit_code == 0
    assert run.stat().st_mtime_ns == before
    other = CliRunner().invoke(ablate, [*arguments[:-1], str(folder), "--epochs", "2"])
    assert isinstance(other.exception, OutputExistsError)
    (listed,) = json.loads((folder / "results.json").read_text())
    assert 0.0 <= listed["peak_overlap"] <= 1.0
    assert f"{listed['seconds']:.2f}" in (folder / "table.md").read_text()
