"""Bands read batch by batch: the match, the draws, truths that q gives nothing."""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from slotflow.batches import Tensors
from slotflow.outcomes import Batch, outcomes, pair_cost
from slotflow.tokendata import TokenData
from tests.report_fakes import Known, known_bands
from tests.synthetic import token_data
from tests.test_losses import network


def _all(data: TokenData, batch: int, model: object = None, draws: int = 6) -> list[Batch]:
    model = network() if model is None else model
    chooser = lambda existence, counts: counts  # noqa: E731
    return list(outcomes(model, data, draws, 3, batch, chooser, 4))  # type: ignore[arg-type]


def _column(parts: list[Batch], name: str) -> np.ndarray:
    return np.concatenate([getattr(part, name) for part in parts])


def test_the_match_costs_least() -> None:
    """Compared with SciPy's assignment, band by band; every source has a slot of its own."""
    data, model = token_data(0, 25), network()
    one = _all(data, 25)[0]
    rows = Tensors.of(data)
    with torch.no_grad():
        cost = pair_cost(model, model.read(rows.batch), rows.targets.sources, rows.count)
    for band, number in enumerate(data.number):
        own = one.band == band
        assert own.sum() == number
        matrix = cost[band, :, :number].double().numpy()
        slots, sources = linear_sum_assignment(matrix)
        total = matrix[one.slot[own], np.arange(number)].sum()
        assert total == np.float64(matrix[slots, sources].sum())
        assert len(set(one.slot[own])) == number
        assert np.allclose(-one.truth_log_q[own], matrix[one.slot[own], np.arange(number)])


def test_draws_do_not_depend_on_the_batch() -> None:
    data = token_data(1, 22)
    whole, parts = _all(data, 22), _all(data, 5)
    assert len(parts) == 5
    for name in ("draws", "log_q", "report_draws", "truth_log_q", "existence", "offset"):
        assert np.allclose(_column(whole, name), _column(parts, name), rtol=1e-3, atol=1e-3), name
    for name in ("slot", "snr", "nearest", "counts", "report_slot"):
        assert np.array_equal(_column(whole, name), _column(parts, name)), name
    # two sources, and two bands, do not share their draws
    assert np.unique(whole[0].draws[:, 0, 1]).size == len(whole[0].draws)


def test_log_q_is_that_of_the_draws() -> None:
    one = _all(known_bands(2, 20), 20, Known(1.3))[0]
    reference = torch.from_numpy(one.reference[one.band, one.slot])[:, None]
    again = Known(1.3).log_prob(torch.from_numpy(one.draws), torch.zeros(0), reference).sum(-1)
    assert np.allclose(again, one.log_q, atol=1e-5)


def test_truths_of_no_density_are_kept() -> None:
    data = known_bands(3, 30)
    one = _all(data, 30, Known(nothing_above=128.0))[0]
    above = one.truths[:, 0] > 128.0
    assert 5 < above.sum() < len(above) - 5
    assert np.array_equal(np.isneginf(one.truth_log_q), above)
    # the others of their bands have their slots as before
    plain = _all(data, 30, Known())[0]
    assert np.array_equal(one.slot[~above], plain.slot[~above])
    assert len(one.slot) == data.number.sum()


def test_a_band_without_components_reports_nothing() -> None:
    data = token_data(4, 6)
    data.valid[3], data.features[3] = False, 0.0
    one = _all(data, 6)[0]
    assert not one.counts[3].any()
    assert 3 not in one.report_band
    assert (one.band == 3).sum() == data.number[3]


def test_nothing_is_reported_unless_asked_for() -> None:
    one = next(iter(outcomes(network(), token_data(5, 3), 2)))
    assert one.report_draws.shape[0] == 0
    assert one.draws.shape == (3, 2, 8)
