"""slotflow.posterior on several processes: the same numbers."""

import numpy as np
import pytest

from slotflow import posterior as module
from slotflow.posterior import posterior
from tests.chain import example_observation, untrained_model

LOW, HIGH = 1.940e-3, 1.944e-3


@pytest.mark.slow
def test_processes_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    year, model = example_observation(), untrained_model()
    monkeypatch.setattr(module, "BATCH", 1)
    here = posterior(year, model, fmin=LOW, fmax=HIGH, samples=50)
    seen: list[tuple[int, int]] = []
    several = posterior(
        year, model, fmin=LOW, fmax=HIGH, samples=50, processes=2,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert len(here.tiles) >= 2
    assert several.tiles == here.tiles
    assert len(several.sources) == len(here.sources) > 0
    for a, b in zip(several.sources, here.sources, strict=True):
        np.testing.assert_array_equal(a.samples, b.samples)
        np.testing.assert_array_equal(a.log_q, b.log_q)
    assert seen[0] == (0, len(here.tiles))
    assert seen[-1] == (len(here.tiles), len(here.tiles))
    assert several.seconds["search"] > 0.0
