"""The network as a whole: shapes, densities and samples that agree."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotflow.coordinates import Frame
from slotflow.encoder import pair_features
from slotflow.mixers.softmax import SoftmaxLayer
from slotflow.model import SlotFlow, distinct_choice, distinct_slots
from slotflow.train import Tensors
from tests.synthetic import BINS, token_data
from tests.test_losses import SMALL, network


def roughened(scale: float = 0.15) -> SlotFlow:
    model = network()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(scale * torch.randn(p.shape, generator=generator))
    return model


@pytest.mark.parametrize("kind", ["evidence-depletion", "vanilla"])
@pytest.mark.parametrize("learned", [True, False])
def test_reading_shapes(kind: str, learned: bool) -> None:
    settings = SMALL.model_copy(update={"slot_attention": kind, "learned_starts": learned})
    torch.manual_seed(0)
    model = SlotFlow(settings, BINS).eval()
    data = Tensors.of(token_data(0, 6))
    reading = model.read(data.batch, torch.Generator().manual_seed(0))
    assert reading.context.shape == (6, 5, 16)
    assert reading.attention.shape == (6, 5, 10)
    some = data.batch.valid.any(dim=1)
    assert torch.allclose(
        reading.attention.sum(-1)[some], torch.ones(int(some.sum()), 5), atol=1e-5
    )
    assert not reading.attention[~data.batch.valid[:, None].expand(-1, 5, -1)].any()


@pytest.mark.parametrize("frame", [Frame(), Frame(True, True)])
def test_samples_have_the_density_that_log_prob_says(frame: Frame) -> None:
    """log q returned with the draws equals log_prob of the draws, on rough weights."""
    model = roughened()
    model.frame = frame
    data = Tensors.of(token_data(1, 5))
    with torch.no_grad():
        reading = model.read(data.batch)
        context, reference = reading.context[4], reading.reference[4]
        draws, log_q = model.sample(context, reference, 200, torch.Generator().manual_seed(0))
        again = torch.stack(
            [
                model.log_prob(draws[s], c.expand(200, -1), r.expand(200, -1)).sum(-1)
                for s, (c, r) in enumerate(zip(context, reference, strict=True))
            ]
        )
    assert torch.allclose(log_q, again.double(), atol=5e-3)


def test_density_is_normalised_over_the_unit_cube() -> None:
    """Importance sampling from the prior: the mean density over the cube is one.

    With references as wide as they come the density is broad enough for plain Monte Carlo.
    """
    model = network()  # at its start: standard normal in z, uniform in v
    data = Tensors.of(token_data(2, 5))
    n = 200_000
    with torch.no_grad():
        reading = model.read(data.batch)
        context, reference = reading.context[3, :1], reading.reference[3, :1].clone()
        reference[:, 0], reference[:, 2], reference[:, 8] = 128.0, 0.2, 0.1
        reference[:, 3], reference[:, 4:6], reference[:, 7] = 60.0, 1.0, 3.0
        reference[:, 11], reference[:, 12] = 0.8, 0.5
        rng = np.random.default_rng(3)
        ln_norm = float(reference[0, 6])
        width = 12.0
        columns = (
            rng.uniform(0, BINS, n), rng.uniform(-0.1, 0.3, n),
            rng.uniform(ln_norm - width, ln_norm + width, n), rng.uniform(0, 2 * np.pi, n),
            rng.uniform(-1, 1, n), rng.uniform(0, np.pi, n), rng.uniform(-1, 1, n),
            rng.uniform(0, 2 * np.pi, n),
        )  # fmt: skip
        sources = torch.from_numpy(np.stack(columns, axis=-1))
        log_q = model.log_prob(sources, context.expand(n, -1), reference.expand(n, -1)).sum(-1)
    # the amplitude's unit range is two decades, the box here 2 * width
    weights = torch.exp(log_q) * (2 * width / np.log(100.0))
    error = float(weights.std() / n**0.5)
    assert float(weights.mean()) == pytest.approx(1.0, abs=4 * error)
    assert error < 0.07


def test_draws_do_not_depend_on_the_other_bands() -> None:
    model = roughened()
    data = Tensors.of(token_data(5, 12))
    with torch.no_grad():
        together = model.read(data.batch)
        alone = model.read(data.rows(torch.tensor([7])).batch)
    assert torch.allclose(together.context[7], alone.context[0], atol=1e-5)


def test_distinct_slots_keep_the_likeliest_on_each_component() -> None:
    reading = network().read(Tensors.of(token_data(0, 2)).batch)
    reading = reading._replace(
        choice=torch.tensor([[0, 1, 0, 2, 1], [3, 3, 3, 3, 3]]),
        existence=torch.tensor([[1.0, 2.0, 3.0, -1.0, 0.5], [0.0, 0.0, 0.0, 0.0, 0.0]]),
    )
    expected = [[False, True, True, True, False], [True, False, False, False, False]]
    assert distinct_slots(reading).tolist() == expected


def test_distinct_choice() -> None:
    """By hand: the largest attention first, each component once while there are others."""
    attention = torch.tensor([[[0.9, 0.1, 0.0], [0.8, 0.15, 0.05], [0.6, 0.3, 0.1]]])
    every = torch.ones(1, 3, dtype=torch.bool)
    assert distinct_choice(attention, every).tolist() == [[0, 2, 1]]
    two = torch.tensor([[True, True, False]])
    assert distinct_choice(attention, two).tolist() == [[0, 0, 1]]


@given(st.integers(0, 1000))
def test_distinct_choices_are_distinct(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    attention = torch.softmax(5 * torch.randn(6, 5, 9, generator=generator), dim=-1)
    valid = torch.arange(9) < torch.randint(5, 10, (6, 1), generator=generator)
    choice = distinct_choice(attention * valid[:, None], valid)
    assert all(len(set(row)) == 5 for row in choice.tolist())
    assert bool(torch.gather(valid, 1, choice).all())


def test_pair_features_are_finite_and_antisymmetric_in_offset() -> None:
    data = Tensors.of(token_data(6, 8))
    features = pair_features(data.batch.reference, data.batch.features[..., 4:7], 24.0)
    assert bool(torch.isfinite(features).all())
    assert torch.allclose(features[..., 0], -features[..., 0].transpose(1, 2))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="heads that divide the width 10; got 4"):
        SoftmaxLayer(10, 4, 0.0)


@pytest.mark.parametrize("edge", ["ra", "phi0", "the fold"])
def test_the_density_does_not_break_where_angles_begin(edge: str) -> None:
    """At 0 / 2 pi, and at (psi = pi/2, phi0) next to (0, phi0 + pi), on rough weights."""
    model = roughened().double()
    data = Tensors.of(token_data(3, 30))
    batch = data.batch._replace(
        features=data.batch.features.double(), band=data.batch.band.double()
    )
    tiny, rng = 1e-7, np.random.default_rng(4)
    with torch.no_grad():
        reading = model.read(batch)
        context, reference = reading.context[:, 0], reading.reference[:, 0]
        below = data.targets.sources[:, 0].clone()
        below[:, 5] = torch.from_numpy(rng.uniform(0.1, 1.4, 30))
        below[:, 7] = torch.from_numpy(rng.uniform(0.1, 3.0, 30))
        above = below.clone()
        if edge == "the fold":
            below[:, 5], above[:, 5] = 0.5 * np.pi - tiny, tiny
            above[:, 7] = below[:, 7] + np.pi
        else:
            column = 3 if edge == "ra" else 7
            below[:, column], above[:, column] = 2 * np.pi - tiny, tiny
        one = model.log_prob(below, context, reference).sum(-1)
        two = model.log_prob(above, context, reference).sum(-1)
        far = below.clone()
        far[:, 5 if edge == "the fold" else column] -= 0.3
        other = model.log_prob(far, context, reference).sum(-1)
    assert torch.allclose(one, two, atol=1e-3)
    assert not torch.allclose(one, other, atol=1e-2)
