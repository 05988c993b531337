"""Held-out figures on cases with known answers."""

import numpy as np
import pytest
import torch
from torch import Tensor

from slotflow.evaluation import evaluate, matched_first, summary
from slotflow.model import SlotFlow
from slotflow.outcomes import outcomes
from tests.synthetic import DURATION, FIRST, token_data
from tests.test_losses import network


class Oracle(torch.nn.Module):
    """A network of known behaviour: slot s stands at component s, and K is always 2."""

    needs_data = False

    def __init__(self, model: SlotFlow) -> None:
        super().__init__()
        self.model = model
        self.settings, self.bins = model.settings, model.bins

    def read(self, batch: object) -> object:
        reading = self.model.read(batch)  # type: ignore[arg-type]
        rows, slots = reading.existence.shape
        choice = torch.arange(slots).expand(rows, -1)
        attention = torch.nn.functional.one_hot(choice, reading.attention.shape[2]).float()
        existence = torch.where(torch.arange(slots) < 2, 9.0, -9.0).expand(rows, -1)
        reference = batch.reference[:, :slots]  # type: ignore[attr-defined]
        return reading._replace(
            choice=choice, attention=attention, existence=existence, reference=reference
        )

    def log_prob(self, *arguments: Tensor) -> Tensor:
        return self.model.log_prob(*arguments)

    def sample(self, *arguments: object) -> tuple[Tensor, Tensor]:
        return self.model.sample(*arguments)  # type: ignore[arg-type]


def test_figures_of_a_known_network() -> None:
    """Components 0..K-1 are the sources' own (tests/synthetic.py), so nothing is missed."""
    data = token_data(0, 50)
    result = evaluate(Oracle(network()), data, DURATION, draws=64)  # type: ignore[arg-type]
    figures = summary(result)
    assert figures["bands"] == 50
    assert figures["sources"] == 100
    estimated = np.where(data.valid.any(axis=1), 2, 0)  # nothing to report without a component
    difference = np.abs(estimated - data.number)
    assert figures["k_exact"] == pytest.approx((difference == 0).mean())
    assert figures["k_within_one"] == pytest.approx((difference <= 1).mean())
    assert figures["k_exact_all_above_10"] == pytest.approx(0.25)  # empty bands do not count
    assert figures["peak_overlap"] == 0.0
    rows = figures["by_nearest_above_snr_10"].values()  # type: ignore[attr-defined]
    assert sum(row["sources"] for row in rows) == 100  # each source in one row, lone ones too
    assert np.median(result.scores.offset) < 0.1
    assert (result.scores.offset > 1).mean() == 0.0
    place = np.sort(data.sources[4, :4, 0])
    nearest = np.sort(result.scores.nearest[6:10])
    gaps = np.diff(place)
    expected = np.sort([gaps[0], min(gaps[0], gaps[1]), min(gaps[1], gaps[2]), gaps[2]])
    assert np.allclose(nearest, expected)
    assert data.first_bin[0] == FIRST


def test_an_untrained_density_centred_on_the_truth_covers_it() -> None:
    """At the start q(z) is standard normal around components that are near the truth."""
    data = token_data(1, 50)
    result = evaluate(Oracle(network()), data, DURATION, draws=200)  # type: ignore[arg-type]
    assert result.scores.inside[:, 0].mean() > 0.9  # frequency, one component sigma off
    assert (result.scores.crps[:, 0] < 0.01).all()


def test_bands_without_components_do_not_count_for_overlap() -> None:
    data = token_data(2, 20)
    data.valid[4] = False
    data.features[4] = 0.0
    figures = summary(evaluate(network(), data, DURATION, draws=8))
    assert np.isfinite(figures["peak_overlap_chance"])


def test_matched_slots_come_first() -> None:
    """Of five slots, whose attention is their number, 4 and 2 hold the two sources."""
    one = next(iter(outcomes(network(), token_data(2, 1), 2)))
    one = one._replace(
        counts=np.ones((1, 5), bool), attention=np.arange(5.0).reshape(1, 5, 1),
        band=np.zeros(2, np.int64), slot=np.array([4, 2]),
    )  # fmt: skip
    assert matched_first(one).ravel().tolist() == [2.0, 4.0, 0.0, 1.0, 3.0]
