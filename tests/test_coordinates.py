"""The local coordinates: inverse, Jacobian, bounds, and the symmetry."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slotflow.config import ObservationSettings
from slotflow.coordinates import Frame, from_local, to_local
from slotflow.labels import from_local_units
from slotflow.parameters import FDOT_T2_PRIOR, LN_AMPLITUDE_RANGE, fdot_widening
from slotflow.response import response
from slotflow.simulate.orbits import response_grid
from slotflow.tokens import REFERENCE

BINS = 256
FRAMES = [Frame(*flags) for flags in itertools.product((False, True), repeat=2)]


def uniform(rng: np.random.Generator, low: float, high: float, n: int) -> Tensor:
    return torch.from_numpy(rng.uniform(low, high, n))


def draw(seed: int, n: int) -> tuple[Tensor, Tensor]:
    """Sources and references anywhere, near or far from each other."""
    rng = np.random.default_rng(seed)
    ranges = (
        (1, 255), FDOT_T2_PRIOR, (-53, -48), (0, 6.28), (-0.999, 0.999), (0, 3.14),
        (-0.999, 0.999), (0, 6.28),
    )  # fmt: skip
    sources = torch.stack([uniform(rng, *r, n) for r in ranges], dim=-1)
    references = (
        (-5, 260), (0, 6.28), (-1.57, 1.57), (0.005, 0.5), (2e-3, 1), (2e-3, 1), (-53, -48),
        (3, 200), (-1, 1), (-3.1, 3.1), (-3.1, 3.1), (0.01, 0.8), (0.01, 0.5), (0.002, 0.5),
        (-0.2, 0.4), (1, 37),
    )  # fmt: skip
    assert len(references) == len(REFERENCE)
    return sources, torch.stack([uniform(rng, *r, n) for r in references], dim=-1)


@given(st.integers(0, 10_000), st.sampled_from(FRAMES))
def test_inverse(seed: int, frame: Frame) -> None:
    sources, reference = draw(seed, 50)
    local = to_local(sources, reference, BINS, frame)
    again = from_local(local.z, local.v, reference, BINS, frame)
    plain = [0, 1, 2, 3, 4, 6]
    assert torch.allclose(again[:, plain], sources[:, plain], rtol=1e-7, atol=1e-7)
    turns = torch.round((again[:, 5] - sources[:, 5]) / (0.5 * torch.pi))
    assert torch.allclose(again[:, 5], sources[:, 5] + turns * 0.5 * torch.pi, atol=1e-7)
    phase = torch.remainder(again[:, 7] - sources[:, 7] - turns * torch.pi + 1, 2 * torch.pi)
    assert torch.allclose(phase, torch.ones_like(phase), atol=1e-7)


@given(st.integers(0, 10_000), st.sampled_from(FRAMES))
def test_log_jacobian_is_autograds(seed: int, frame: Frame) -> None:
    sources, reference = draw(seed, 1)
    # as functions of the unit-cube coordinates u of to_scored
    low, high = FDOT_T2_PRIOR
    scale = torch.tensor(
        [BINS, high - low, LN_AMPLITUDE_RANGE, 2 * torch.pi, 2.0, torch.pi / 2, 2.0, 2 * torch.pi],
        dtype=torch.float64,
    )

    def both(u: Tensor) -> Tensor:
        local = to_local((u * scale)[None], reference, BINS, frame)
        return torch.cat([local.z[0], local.v])

    matrix = torch.autograd.functional.jacobian(both, sources[0] / scale)
    expected = torch.linalg.slogdet(matrix).logabsdet
    got = to_local(sources, reference, BINS, frame).log_jacobian[0]
    assert float(got) == pytest.approx(float(expected), abs=1e-6)


def test_symmetry_images_have_the_same_coordinates() -> None:
    sources, reference = draw(1, 200)
    image = sources.clone()
    image[:, 5] = torch.remainder(image[:, 5] + 0.5 * torch.pi, torch.pi)
    image[:, 7] = torch.remainder(image[:, 7] + torch.pi, 2 * torch.pi)
    a, b = to_local(sources, reference, BINS), to_local(image, reference, BINS)
    assert torch.allclose(a.z, b.z, atol=1e-6)
    circle = torch.remainder(a.v - b.v + 0.5, 1.0)
    assert torch.allclose(circle, torch.full_like(circle, 0.5), atol=1e-9)


@pytest.mark.parametrize("size", [1.0, 20.0, 1e4])
def test_bounds_hold_for_any_coordinates(size: float) -> None:
    rng = np.random.default_rng(2)
    _, reference = draw(3, 500)
    z = torch.from_numpy(rng.normal(size=(500, 7)) * size)
    out = from_local(z, torch.from_numpy(rng.uniform(size=500)), reference, BINS)
    assert torch.isfinite(out).all()
    for column, low, high in (
        (0, 0, BINS), (1, *FDOT_T2_PRIOR), (3, 0, 2 * np.pi), (4, -1, 1), (5, 0, np.pi),
        (6, -1, 1), (7, 0, 2 * np.pi),
    ):  # fmt: skip
        assert (out[:, column] >= low).all()
        assert (out[:, column] <= high).all()


def test_a_source_at_its_component_is_at_the_origin() -> None:
    """Frequency, sky and phases equal to the component's: z = 0 and v = 1/2."""
    _, reference = draw(4, 100)
    reference[:, 0] = reference[:, 0].clamp(5, 250)
    reference[:, 2] = reference[:, 2].clamp(-1.4, 1.4)
    c = reference[:, 8].clamp(-0.89, 0.89)
    reference[:, 8] = c
    right, left = reference[:, 9], reference[:, 10]
    norm = 0.5 * torch.log((1 + c) ** 4 + (1 - c) ** 4)
    sources = torch.stack(
        [
            reference[:, 0], torch.full_like(c, 0.1), reference[:, 6] - norm, reference[:, 1],
            torch.sin(reference[:, 2]), torch.remainder(0.25 * (right - left), torch.pi), c,
            -0.5 * (right + left),
        ],
        dim=-1,
    )  # fmt: skip
    local = to_local(sources, reference, BINS)
    assert float(local.z.abs().max()) < 1e-6
    assert torch.allclose(local.v, torch.full_like(local.v, 0.5), atol=1e-9)


def test_the_stretched_circle_is_smooth_and_evens_out_the_width() -> None:
    """A wrapped normal of the width that an SNR gives: a few tenths wide at any SNR."""
    sources, reference = draw(5, 1)
    # one reference: the map of the circle is increasing, onto, and its slope that of differences
    psi = torch.linspace(0.0, torch.pi, 20_001, dtype=torch.float64)[:-1]
    many = sources[:1].repeat(len(psi), 1)
    many[:, 5] = psi
    local = to_local(many, reference[:1].repeat(len(psi), 1), BINS, Frame(psi_stretched=True))
    steps = torch.remainder(torch.diff(local.v, append=local.v[:1]), 1.0)
    assert float(steps.min()) > 0.0
    assert float(steps.sum()) == pytest.approx(1.0, abs=1e-9)
    ahead = torch.roll(local.log_jacobian_v, -1)
    mean = torch.exp(0.5 * (local.log_jacobian_v + ahead))
    assert torch.allclose(steps * len(psi), mean, rtol=0.02)
    for rho in (5.0, 20.0, 200.0):
        known = reference[:1].repeat(4000, 1)
        known[:, 7] = rho
        at = to_local(sources[:1].repeat(4000, 1), known, BINS)
        noise = torch.from_numpy(np.random.default_rng(6).normal(size=4000)) * (0.5 / rho)
        near = sources[:1].repeat(4000, 1)
        near[:, 5] += torch.pi * (0.5 - at.v) + noise
        v = to_local(near, known, BINS, Frame(psi_stretched=True)).v
        assert 0.04 < float(v.std()) < 0.07


def test_in_the_middle_of_the_observation_fdot_alone_hardly_changes_the_signal(
    observation: ObservationSettings,
) -> None:
    """Along z[1], the others fixed, the true response keeps its phase; about the start it does
    not, and the signal is another one."""
    rng, duration = np.random.default_rng(7), observation.duration
    first = round(6e-3 * duration) - BINS // 2
    widening = float(fdot_widening(6e-3))
    sources, reference = (x[:20] for x in draw(8, 40))
    sources[:, 0] = 128.0 + uniform(rng, -0.1, 0.3, 20)  # the bin of the response stays
    sources[:, 1], sources[:, 2] = 0.1, np.log(1e-22)
    reference[:, 0] = sources[:, 0] + uniform(rng, -0.3, 0.3, 20)
    reference[:, 6] = sources[:, 2] + uniform(rng, 0.5, 1.5, 20)
    reference[:, 14], reference[:, 15] = sources[:, 1], widening
    overlap = {}
    for frame in (Frame(), Frame(mid_epoch=True)):
        local = to_local(sources, reference, BINS, frame)
        z = local.z.clone()
        fdot = sources[:, 1] + 0.5 / widening  # by half a unit of fdot T^2
        low, high = FDOT_T2_PRIOR
        z[:, 1] = torch.special.ndtri((fdot - low) / (high - low))
        moved = from_local(z, local.v, reference, BINS, frame)
        a, b = (
            response(from_local_units(x.numpy(), first, duration), response_grid(observation, 256))
            for x in (sources, moved)
        )
        assert np.array_equal(a[1], b[1])
        inner = [
            np.vdot(x, y).real / np.linalg.norm(x) / np.linalg.norm(y)
            for x, y in zip(a[0][:, :2], b[0][:, :2], strict=True)
        ]
        overlap[frame.mid_epoch] = np.array(inner)
    # what is left is that of a parabola of +-pi/16 about the middle, less a constant
    assert overlap[True].min() > 0.97
    assert np.median(overlap[False]) < 0.9
