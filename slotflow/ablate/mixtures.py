"""Additive mixtures of a few simple sources, one of them dominant: three kinds.

The synthetic data of arXiv:2605.02323, section 3.1, as its author's package defines them:
``sinusoids`` A sin(2 pi f t + phi), ``bumps`` A exp(-(t - mu)^2 / 2 sigma^2), and ``multiscale``,
a sinusoid under a bump, on t = 0..1. The first source has an amplitude of 5-10, the others of
0.2-1; white noise is added. The same seed gives the same numbers as that package's.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from torch import Tensor

Kind = Literal["sinusoids", "bumps", "multiscale"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

#: Names of the parameters of each kind, in their order.
NAMES: Final[dict[Kind, tuple[str, ...]]] = {
    "sinusoids": ("frequency", "amplitude", "phase"),
    "bumps": ("centre", "amplitude", "width"),
    "multiscale": ("frequency", "amplitude", "phase", "centre", "width"),
}
NOISE: Final = 0.1

#: Uniform ranges of the parameters (lowest, width), in the order in which they are drawn.
_DRAWN: Final[dict[Kind, dict[str, tuple[float, float]]]] = {
    "sinusoids": {"frequency": (2.0, 8.0), "phase": (0.0, 2.0 * math.pi)},
    "bumps": {"centre": (0.1, 0.8), "width": (0.02, 0.05)},
    "multiscale": {
        "frequency": (3.0, 15.0), "phase": (0.0, 2.0 * math.pi), "centre": (0.2, 0.6),
        "width": (0.05, 0.1),
    },
}  # fmt: skip
_DOMINANT: Final = (5.0, 5.0)
_OTHERS: Final = (0.2, 0.8)


@dataclass(frozen=True)
class Mixtures:
    """M mixtures of up to K sources.

    ``signals`` (M, N) float32, ``parameters`` (M, K, P) float32 and ``sources`` (M, K, N) float32,
    zero beyond ``number`` (M,) int64.
    """

    signals: Tensor
    parameters: Tensor
    number: Tensor
    sources: Tensor


def make_mixtures(
    kind: Kind, count: int, seed: int, least: int = 1, most: int = 4, samples: int = 256
) -> Mixtures:
    """Draw mixtures of ``least`` to ``most`` sources (each number alike).

    Args:
        kind: of the sources.
        count: M.
        seed: all numbers follow from it.
        least, most: numbers of sources.
        samples: N.

    Raises:
        ValueError: a kind that there is not, or numbers that make no mixtures.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}; got {kind!r}")
    if not 1 <= least <= most or count < 1 or samples < 2:
        raise ValueError(
            f"expected 1 <= least <= most, count >= 1, samples >= 2;"
            f" got {least}, {most}, {count}, {samples}"
        )
    generator = torch.Generator().manual_seed(seed)
    number = torch.randint(least, most + 1, (count,), generator=generator)
    drawn = list(_DRAWN[kind])
    # one uniform after the other: source by source its parameters, the amplitude last
    sources_in_all = int(number.sum())
    uniform = torch.rand(sources_in_all, len(drawn) + 1, generator=generator).double()
    present = torch.arange(most)[None] < number[:, None]
    first = torch.zeros_like(present)
    first[:, 0] = True
    values: dict[str, Tensor] = {}
    for column, name in enumerate(drawn):
        low, width = _DRAWN[kind][name]
        values[name] = uniform[:, column] * width + low
    amplitude = torch.where(
        first[present],
        uniform[:, -1] * _DOMINANT[1] + _DOMINANT[0],
        uniform[:, -1] * _OTHERS[1] + _OTHERS[0],
    )
    values["amplitude"] = amplitude
    parameters = torch.zeros(count, most, len(NAMES[kind]))
    parameters[present] = torch.stack([values[name] for name in NAMES[kind]], -1).float()
    sources = torch.zeros(count, most, samples)
    sources[present] = _waveforms(kind, values, samples)
    signals = sources.sum(1) + NOISE * torch.randn(count, samples, generator=generator)
    return Mixtures(signals, parameters, number, sources)


def _waveforms(kind: Kind, values: dict[str, Tensor], samples: int) -> Tensor:
    t = torch.linspace(0.0, 1.0, samples, dtype=torch.float64)
    wave = values["amplitude"][:, None]
    if kind != "bumps":
        angle = 2.0 * math.pi * values["frequency"][:, None] * t + values["phase"][:, None]
        wave = wave * torch.sin(angle)
    if kind != "sinusoids":
        wave = wave * torch.exp(
            -0.5 * ((t - values["centre"][:, None]) / values["width"][:, None]) ** 2
        )
    return wave.float()
