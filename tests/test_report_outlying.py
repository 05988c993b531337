"""slotflow.report.outlying: bands of the training prior pass, those with too loud noise do not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slotflow import manifest, store
from slotflow.checkpoint import Model, load_model
from slotflow.data import shipped
from slotflow.outlying import FALSE_ALARMS
from slotflow.report.gate import flat
from slotflow.report.outcome import NAMES
from slotflow.report.outlying import QUANTILES, outlying_scores, summarised
from slotflow.report.page import render
from slotflow.report.record import Report
from slotflow.report.written import all_figures, figure_names
from slotflow.simulate.sample import simulate_group
from slotflow.store import TrainingSet
from slotflow.tokencache import ensure_searched
from tests.chain import untrained_model
from tests.report_example import example_report

LEVEL, SEED = 0.9, 41


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(shipped("model.safetensors"))


def _set(folder: Path, bands: list[store.Band], model: Model) -> TrainingSet:
    """Write bands as a set, searched."""
    folder.mkdir()
    name = manifest.shard_name(0)
    entry = store.write_shard(folder / name, bands, {"seed": SEED, "start": 0})
    settings = model.preset.model_dump(mode="json", include={"observation", "prior", "population"})
    listed = manifest.Manifest(
        manifest.SCHEMA_VERSION, len(bands), SEED, len(bands), settings, (entry,)
    )
    manifest.write_manifest(folder, listed)
    data = TrainingSet(folder)
    ensure_searched(data, model.grid, model.preset.components, 1)
    return data


def test_bands_of_the_prior_and_louder_noise(tmp_path: Path, model: Model) -> None:
    """Of 32 bands more than three are flagged once in 2,000 times; with all noise, foreground and
    instrument, three times as loud, nearly all are."""
    plain = list(simulate_group(model.preset, SEED, list(range(32))))
    loud = [
        replace(band, foreground=3.0 * band.foreground, noise_scale=3.0 * band.noise_scale)
        for band in plain[:12]
    ]
    told: list[tuple[int, int]] = []
    found = outlying_scores(
        model, _set(tmp_path / "plain", plain, model), LEVEL, lambda *done: told.append(done)
    )
    louder = outlying_scores(model, _set(tmp_path / "loud", loud, model), LEVEL)
    assert found is not None
    assert louder is not None
    assert told[-1] == (32, 32)
    assert found.outside.number == 32
    assert found.outside.hits <= 3
    assert found.outside.lower is not None
    assert found.outside.lower <= FALSE_ALARMS == found.nominal
    assert louder.outside.hits >= 10
    assert sum(count for _, count in louder.kinds) == louder.outside.hits
    low, high = (dict(one.quantiles) for one in (found, louder))
    assert low[0.5] < 1.0 < high[0.5]
    assert list(low.values()) == sorted(low.values())


def test_summary_of_known_scores() -> None:
    scores = np.arange(1, 101) / 50.0  # 0.02 to 2: fifty above 1
    kinds = ["level"] * 60 + ["peaks"] * 30 + ["level"] * 10
    found = summarised(scores, kinds, LEVEL)
    assert (found.outside.hits, found.outside.number) == (50, 100)
    assert found.kinds == (("peaks", 30), ("level", 20))
    z = 1.6448536269514722  # Wilson's interval
    half = z * np.sqrt(0.25 / 100 + z**2 / 4e4) / (1.0 + z**2 / 100)
    assert found.outside.lower == pytest.approx(0.5 - half)
    assert found.outside.upper == pytest.approx(0.5 + half)
    assert dict(found.quantiles)[0.5] == pytest.approx(1.01)
    assert dict(found.quantiles)[1.0] == 2.0
    assert summarised(scores, [], LEVEL).kinds == ()


def _scored(models: int, *numbers: int) -> Report:
    """An example whose models of these numbers have a score."""
    report = example_report(models=models)
    found = summarised([0.2, 0.4, 0.9, 1.7], ["level", "level", "level", "<b>"], LEVEL)
    made = (
        replace(one, outlying=found) if i in numbers else one for i, one in enumerate(report.models)
    )
    return replace(report, models=tuple(made))


@pytest.mark.parametrize("numbers", [(), (0,), (1,), (0, 1)])
def test_figures_and_their_names(numbers: tuple[int, ...]) -> None:
    """Only of the models that have a score; known before any band is read."""
    figures = all_figures(_scored(2, *numbers))
    assert set(flat(figures)) == set(figure_names(NAMES, ["other-1"], scored=numbers))
    assert ("outlying" in figures) == (0 in numbers)
    assert ("outlying" in figures["compared"]["other-1"]) == (1 in numbers)
    if 0 in numbers:
        assert figures["outlying"]["share"] == 0.25
        assert figures["outlying"]["largest"] == 1.7
        assert set(figures["outlying"]) == {"share", "lower", "upper", *QUANTILES}


def test_the_page_tells_it() -> None:
    plain, page = render(_scored(2)), render(_scored(2, 1))
    assert "training distribution" not in plain.lower()
    assert 'id="outlying-scores"' in page
    assert "25.0% of 4 bands are outside it; of simulated ones 1% are" in page
    assert "&lt;b&gt; 1" in page  # what the flagged band is furthest in
    assert "<b> 1" not in page


def test_a_model_without_a_score() -> None:
    """Nothing is read: the set need not even be there."""
    model = untrained_model()
    assert model.outlying is None
    assert outlying_scores(model, None, LEVEL) is None  # type: ignore[arg-type]
