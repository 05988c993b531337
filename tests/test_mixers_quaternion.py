"""Quaternion attention against quaternion algebra written out, number by number."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

from slotflow.mixers.conformer import (
    ConformerBlock,
    QuaternionConvolution,
    SpectrumConformer,
    pure_quaternions,
)
from slotflow.mixers.quaternion import (
    QRMSNorm,
    QuaternionAttention,
    QuaternionLinear,
    ScoreMaps,
)

BATCH, LENGTH, COUNT, HEADS = 2, 5, 6, 3
WIDTH = 4 * COUNT


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Quaternion:
    """Slow and plain: i^2 = j^2 = k^2 = ijk = -1, by the table of the units' products."""

    TABLE = ("1ijk", "i-1k-j", "j-k-1i", "kj-i-1")

    def __init__(self, parts: object) -> None:
        self.parts = [float(part) for part in parts]  # type: ignore[attr-defined]

    @classmethod
    def units(cls) -> list[list[tuple[int, int]]]:
        rows = []
        for row in cls.TABLE:
            cells, sign = [], 1
            for letter in row:
                if letter == "-":
                    sign = -1
                else:
                    cells.append((sign, "1ijk".index(letter)))
                    sign = 1
            rows.append(cells)
        return rows

    def __mul__(self, other: "Quaternion") -> "Quaternion":
        out = [0.0] * 4
        for a, row in enumerate(self.units()):
            for b, (sign, c) in enumerate(row):
                out[c] += sign * self.parts[a] * other.parts[b]
        return Quaternion(out)

    def __add__(self, other: "Quaternion") -> "Quaternion":
        return Quaternion([a + b for a, b in zip(self.parts, other.parts, strict=True)])

    def conjugate(self) -> "Quaternion":
        return Quaternion([self.parts[0], *(-part for part in self.parts[1:])])


ZERO = Quaternion([0.0] * 4)


def read(x: Tensor) -> list[Quaternion]:
    """The quaternions of one token."""
    return [Quaternion(column) for column in x.detach().view(4, -1).T.tolist()]


def write(quaternions: list[Quaternion]) -> Tensor:
    return torch.tensor([q.parts for q in quaternions]).T.flatten()


def mapped(layer: QuaternionLinear, x: Tensor) -> Tensor:
    weight = layer.weight.detach()
    found = []
    for row in range(weight.shape[1]):
        total = ZERO
        for column, q in enumerate(read(x)):
            total = total + Quaternion(weight[:, row, column].tolist()) * q
        found.append(total)
    return write(found) + layer.bias.detach()


def slow_attention(module: QuaternionAttention, x: Tensor, bias: Tensor, shared: bool) -> Tensor:
    """One sample, token by token and head by head."""
    q, k, v = (
        [read(mapped(part, token)) for token in x]
        for part in (module.query, module.key, module.value)
    )
    size = COUNT // HEADS
    rows = []
    for t in range(LENGTH):
        out: list[Quaternion] = []
        for head in range(HEADS):
            own = range(head * size, (head + 1) * size)
            scores = np.zeros((4, LENGTH))
            for u in range(LENGTH):
                total = ZERO
                for d in own:
                    total = total + q[t][d] * k[u][d].conjugate()
                scores[:, u] = np.array(total.parts) / np.sqrt(4 * size) + bias[head, t, u].item()
            if shared:
                scores[1:] = scores[0]
            weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            for d in own:
                values = np.array([v[u][d].parts for u in range(LENGTH)])
                out.append(Quaternion((weights.T * values).sum(axis=0)))
        rows.append(mapped(module.out, write(out)))
    return torch.stack(rows)


def test_the_algebra_of_the_oracle() -> None:
    one, i, j, k = (Quaternion([float(n == m) for m in range(4)]) for n in range(4))
    assert (i * j).parts == k.parts
    assert (j * i).parts == [0.0, 0.0, 0.0, -1.0]
    assert (i * j * k).parts == [-1.0, 0.0, 0.0, 0.0]
    assert (one * j).parts == j.parts


@pytest.mark.parametrize("scores", ["shared", "hamilton"])
def test_attention_equals_quaternion_algebra(scores: str) -> None:
    torch.manual_seed(1)
    module = QuaternionAttention(WIDTH, HEADS, scores)  # type: ignore[arg-type]
    x = torch.randn(BATCH, LENGTH, WIDTH)
    bias = torch.randn(BATCH, HEADS, LENGTH, LENGTH)
    got = module(x, bias)
    for b in range(BATCH):
        expected = slow_attention(module, x[b], bias[b], scores == "shared")
        torch.testing.assert_close(got[b], expected, rtol=0, atol=1e-12)


def test_a_quaternion_map_equals_quaternion_algebra() -> None:
    layer = QuaternionLinear(COUNT, 4)
    x = torch.randn(3, WIDTH)
    expected = torch.stack([mapped(layer, row) for row in x])
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@hypothesis_settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), size=st.integers(1, 5))
def test_the_real_part_is_the_dot_product(seed: int, size: int) -> None:
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, 1, 3, 4, size, generator=g) for _ in range(2))
    maps = ScoreMaps()(q, k)[0, :, 0] * (4 * size) ** 0.5
    dots = torch.einsum("tcd,ucd->tu", q[0, 0], k[0, 0])
    torch.testing.assert_close(maps[0], dots, rtol=0, atol=1e-12)
    total = ZERO
    for d in range(size):
        other = Quaternion(k[0, 0, 2, :, d].tolist()).conjugate()
        total = total + Quaternion(q[0, 0, 1, :, d].tolist()) * other
    torch.testing.assert_close(maps[:, 1, 2], torch.tensor(total.parts), rtol=0, atol=1e-12)


def test_a_quarter_of_the_weights() -> None:
    assert 4 * QuaternionLinear(COUNT, 7).weight.numel() == nn.Linear(WIDTH, 28).weight.numel()
    shared, four = (QuaternionAttention(WIDTH, HEADS, s) for s in ("shared", "hamilton"))  # type: ignore[arg-type]
    weights = [n for n, _ in shared.named_parameters() if n.endswith("weight")]
    real = nn.MultiheadAttention(WIDTH, HEADS)
    count = sum(p.numel() for n, p in shared.named_parameters() if n in weights)
    assert 4 * count == real.in_proj_weight.numel() + real.out_proj.weight.numel()  # type: ignore[union-attr]
    assert sum(p.numel() for p in four.parameters()) == sum(p.numel() for p in shared.parameters())


def test_multiplying_all_by_one_quaternion_from_the_right_passes_through_a_map() -> None:
    """Left multiplication commutes with right multiplication: W (x q) = (W x) q."""
    layer = QuaternionLinear(COUNT, COUNT)
    layer.bias.data.zero_()
    x, turn = torch.randn(WIDTH), Quaternion([0.3, -1.2, 0.7, 2.0])

    def turned(token: Tensor) -> Tensor:
        return write([q * turn for q in read(token)])

    torch.testing.assert_close(layer(turned(x)), turned(layer(x)))


def test_the_norm_gives_each_quaternion_the_same_size() -> None:
    norm = QRMSNorm(COUNT)
    norm.scale.data = torch.arange(1.0, COUNT + 1.0)
    x = torch.randn(LENGTH, WIDTH) * 50.0
    sizes = norm(x).view(LENGTH, 4, COUNT).square().mean(dim=1).sqrt()
    torch.testing.assert_close(sizes, norm.scale.detach().expand(LENGTH, -1), rtol=1e-5, atol=0)
    directions = x.view(LENGTH, 4, COUNT) / norm(x).view(LENGTH, 4, COUNT)
    torch.testing.assert_close(directions, directions[:, :1].expand_as(directions))


def test_the_convolution_equals_quaternion_algebra() -> None:
    layer = QuaternionConvolution(2, kernel=5)
    x = torch.randn(1, LENGTH, 8)
    expected = []
    for t in range(LENGTH):
        found = []
        for channel in range(2):
            total = ZERO
            for s in range(5):
                if 0 <= t + s - 2 < LENGTH:
                    w = Quaternion(layer.weight.detach()[:, channel, s].tolist())
                    total = total + w * read(x[0, t + s - 2])[channel]
            found.append(total)
        expected.append(write(found))
    torch.testing.assert_close(layer(x)[0], torch.stack(expected), rtol=0, atol=1e-12)
    assert QuaternionConvolution(3).weight.shape[-1] == 31


def test_data_enter_as_pure_quaternions() -> None:
    data = torch.randn(2, 3, 10, dtype=torch.complex128) * 40.0
    found = pure_quaternions(data).view(2, 3, 4, 12)
    assert not found[:, :, 0].any()
    assert not found[:, 2, :, 2:4].any()  # filled up
    first = data[0, :, 4:8].flatten()  # the second patch, channel by channel
    torch.testing.assert_close(found[0, 1, 1], torch.asinh(first.abs()))
    turned = torch.complex(found[0, 1, 2], found[0, 1, 3])
    torch.testing.assert_close(turned.angle(), first.angle())
    torch.testing.assert_close(turned.abs(), found[0, 1, 1])


def test_the_block_is_written_out() -> None:
    torch.manual_seed(2)
    block = ConformerBlock(WIDTH, HEADS)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    h = x + 0.5 * block.first(x)
    h = h + block.attention(block.norm_attention(h))
    h = h + block.convolution(h)
    torch.testing.assert_close(block(x), block.norm(h + 0.5 * block.second(h)))


def test_what_is_read_is_near_the_component() -> None:
    """Without attention, the data far beyond the kernel's reach do not matter."""
    torch.manual_seed(3)
    reader = SpectrumConformer(WIDTH, HEADS)
    for parameter in reader.block.attention.out.parameters():
        parameter.data.zero_()
    data = torch.randn(1, 3, 512, dtype=torch.complex128)
    tokens, place = torch.zeros(1, 1, WIDTH), torch.tensor([[100.0]])
    before = reader(data, place, tokens)
    changed = data.clone()
    changed[..., 180:] = 9.0  # 15 patches of 4 bins, and one for the interpolation
    torch.testing.assert_close(reader(changed, place, tokens), before)
    changed[..., 150:] = 9.0
    assert not torch.allclose(reader(changed, place, tokens), before)
