"""The parameters' fold and scaled ranges."""

import numpy as np
import pytest

from slotflow.parameters import NAMES, PARAMETERS, PHI0, PSI, SCORED, fold, to_scored
from tests.synthetic import random_sources


def test_order_is_jaxgbs() -> None:
    assert NAMES == ("f0", "fdot", "amplitude", "ra", "dec", "psi", "iota", "phi0")
    assert len({p.symbol for p in PARAMETERS}) == 8


def test_fold_is_idempotent_and_keeps_its_input() -> None:
    sources = random_sources(np.random.default_rng(0), 300, 1e-3, 2e-3, 3e7)
    sources[:, PSI] = np.random.default_rng(1).uniform(-10, 10, 300)
    sources[0, PSI] = -1e-17  # rounds to the upper edge
    before = sources.copy()
    once = fold(sources)
    assert np.array_equal(sources, before)
    assert np.allclose(fold(once), once)
    assert (once[:, PSI] >= 0).all()
    assert (once[:, PSI] < 0.5 * np.pi).all()
    assert (once[:, PHI0] >= 0).all()
    assert (once[:, PHI0] < 2 * np.pi).all()


def test_scored_ranges_of_the_prior() -> None:
    """The default prior fills the unit ranges uniformly, so its CRPS are 1/6 and 1/8."""
    from slotflow.metrics import fair_crps

    duration = 524_288 * 60.0
    rng = np.random.default_rng(2)
    n = 4000
    sources = random_sources(rng, n, 47000 / duration, 47256 / duration, duration)
    unit = to_scored(sources, np.full(n, 47000.0), 256, duration)
    for j, (name, period) in enumerate(SCORED):
        if name == "ln_amplitude":
            continue
        assert unit[:, j].min() >= 0
        assert unit[:, j].max() <= 1
        draws = np.broadcast_to(unit[: n // 2, j], (n // 2, n // 2))
        score = fair_crps(draws, unit[n // 2 :, j], period).mean()
        assert score == pytest.approx(1 / 8 if period else 1 / 6, rel=0.03)
