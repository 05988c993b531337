"""A network whose flow is the exact posterior, or is not, and bands that it reads."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slotflow.calibration import Calibration
from slotflow.config import PriorSettings
from slotflow.model import Reading
from slotflow.report.make import report_settings
from slotflow.report.record import ReportSettings
from slotflow.tokendata import TokenData
from tests.synthetic import BINS, DURATION, token_data

SLOTS = 5
WIDTH = {"bin": 0.05, "ln_amplitude": 0.3, "ra": 0.2}  # of the exact posterior
LN_A = -50.0  # its centre


def settings(seed: int = 0, draws: int = 99, min_probability: float = 0.5) -> ReportSettings:
    """Settings of a report with few resamples."""
    return replace(report_settings(seed, draws), min_probability=min_probability, resamples=100)


def normals(local: Tensor, reference: Tensor) -> Tensor:
    """Standard normal (..., 3) of sources drawn from the posterior: bin, ln A given it, ra."""
    first = (local[..., 0] - reference[..., 0]) / WIDTH["bin"]
    second = (local[..., 2] - LN_A) / WIDTH["ln_amplitude"]
    turn = torch.remainder(local[..., 3] - reference[..., 1] + np.pi, 2 * np.pi) - np.pi
    return torch.stack([first, (second - 0.8 * first) / 0.6, turn / WIDTH["ra"]], dim=-1)


def drawn(reference: Tensor, generator: torch.Generator, scale: float = 1.0) -> Tensor:
    """Sources (..., 8) in local units from the posterior about components (..., R)."""
    shape = reference.shape[:-1]
    z = scale * torch.randn((*shape, 3), generator=generator, dtype=torch.float64)
    u = torch.rand((*shape, 5), generator=generator, dtype=torch.float64)
    return torch.stack(
        [
            reference[..., 0] + WIDTH["bin"] * z[..., 0], -0.1 + 0.4 * u[..., 0],
            LN_A + WIDTH["ln_amplitude"] * (0.8 * z[..., 0] + 0.6 * z[..., 1]),
            torch.remainder(reference[..., 1] + WIDTH["ra"] * z[..., 2], 2 * np.pi),
            2 * u[..., 1] - 1, 0.5 * np.pi * u[..., 2], 2 * u[..., 3] - 1, 2 * np.pi * u[..., 4],
        ],
        dim=-1,
    )  # fmt: skip


class Known(torch.nn.Module):
    """Slot s stands on component s; its density is the bands' own, ``scale`` times as wide.

    ``nothing_above``: bin above which it gives no density.
    """

    needs_data = False
    bins = BINS

    def __init__(self, scale: float = 1.0, nothing_above: float = np.inf) -> None:
        super().__init__()
        self.scale, self.nothing_above = scale, nothing_above
        self.settings = SimpleNamespace(slots=SLOTS)

    def read(self, batch: Any) -> Reading:
        rows, components = batch.valid.shape
        choice = torch.arange(SLOTS).expand(rows, -1)
        attention = torch.nn.functional.one_hot(choice, components).float()
        attention = 0.9 * attention + 0.1 * batch.valid[:, None] / batch.valid.sum(1).clamp(
            min=1
        ).view(-1, 1, 1)
        loud = batch.reference[:, :SLOTS, 7] > 15.0  # sources' components are at 24
        return Reading(
            torch.zeros(rows, SLOTS, 1), attention, choice, batch.reference[:, :SLOTS],
            torch.where(loud & batch.valid[:, :SLOTS], 4.0, -4.0),
            torch.zeros(rows, components), torch.zeros(rows, SLOTS, 1),
            torch.ones(rows, SLOTS + 1, components),
        )  # fmt: skip

    def log_prob(self, sources: Tensor, context: Tensor, reference: Tensor) -> Tensor:
        log_q = self._log_q(sources, reference)
        log_q = log_q.masked_fill(sources[..., 0] > self.nothing_above, -np.inf)
        return torch.stack([log_q, torch.zeros_like(log_q)], dim=-1).float()

    def _log_q(self, sources: Tensor, reference: Tensor) -> Tensor:
        z = normals(sources, reference) / self.scale
        return -0.5 * (z**2).sum(-1) - 3 * np.log(self.scale)

    def sample(
        self, context: Tensor, reference: Tensor, draws: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        own = reference[:, None].expand(-1, draws, -1)
        local = drawn(own, generator, self.scale)
        return local, self._log_q(local, own)


def known_bands(seed: int, bands: int) -> TokenData:
    """Bands whose sources are drawn from the posterior about their components."""
    data = token_data(seed, bands)
    generator = torch.Generator().manual_seed(seed)
    local = drawn(torch.from_numpy(data.reference[:, : data.sources.shape[1]]), generator).numpy()
    here = np.arange(data.sources.shape[1]) < data.number[:, None]
    component = np.where(here, np.arange(here.shape[1]), -1)
    return data._replace(
        sources=np.where(here[..., None], local, data.sources), component=component,
        snr=np.where(here, np.exp(local[..., 2] - LN_A) * 24.0, np.nan),
    )  # fmt: skip


class Set:
    """As much of a training set as a report asks of one; no source outside the windows."""

    def __init__(self, bands: int) -> None:
        self.observation = SimpleNamespace(duration=DURATION)
        self.prior = PriorSettings(
            fdot_t2_min=-0.1,
            fdot_t2_max=0.3,
            snr_min=24.0 * np.exp(-1.0),
            snr_max=24.0 * np.exp(1.0),
        )
        self._bands = bands

    def shard_ranges(self) -> list[tuple[int, int]]:
        return [(0, self._bands)]

    def column(self, shard: int, name: str) -> np.ndarray:
        assert (shard, name) == (0, "outside")
        return np.full((self._bands, 24, 8), np.nan)


def known_model(grid: Any, scale: float = 1.0, **options: Any) -> Any:
    """A model of :class:`Known`."""
    return SimpleNamespace(network=Known(scale, **options), grid=grid, calibration=Calibration())
