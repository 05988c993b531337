"""Pictures of data with gaps: waveforms as the gaps leave them, and the gaps said."""

from dataclasses import replace

import numpy as np
import pytest

from slotflow.config import GapSettings, ObservationSettings
from slotflow.gaps import cut, gap_mask
from slotflow.noise import standard_psd
from slotflow.plot_band import plot_band, whitened_waveforms
from slotflow.response import ResponseGrid
from slotflow.results import BandView, PosteriorSettings, Result, TileRecord

OBSERVATION = ObservationSettings()
T = OBSERVATION.duration
FIRST, BINS, MASK = 60_000, 256, 8192
SOURCE = np.array([[(FIRST + 128.3) / T, 0.1 / T**2, 3e-22, 1.2, 0.4, 0.3, 0.8, 2.0]])


@pytest.fixture(scope="module")
def view() -> BandView:
    psd = standard_psd((FIRST + np.arange(BINS)) / T, OBSERVATION)
    none = np.zeros((5, 0))
    return BandView(
        FIRST, np.zeros((3, BINS), dtype=np.complex64), psd, none[1:], none, none[0], np.zeros(4),
        (),
    )  # fmt: skip


def test_waveforms_have_what_the_gaps_leave(view: BandView, slow_grid: ResponseGrid) -> None:
    """The mask on the signal itself, then division by the noise's deviation under the mask."""
    spans = np.arange(20)[:, None] * T / 20 + np.array([0.0, 0.1 * T / 20])
    taper = 3600.0 * GapSettings().taper_hours
    mask = gap_mask((np.arange(MASK) + 0.5) * T / MASK, spans, taper)
    gain = float(np.sqrt(np.mean(mask**2)))
    assert 0.90 < gain < 0.95
    whole = whitened_waveforms(SOURCE, view, OBSERVATION, slow_grid)[0]
    seen = cut(whole, mask) / gain
    gapped = replace(view, gap_fraction=0.1, gain=gain)
    drawn = whitened_waveforms(SOURCE, gapped, OBSERVATION, slow_grid)[0]
    best = float(np.vdot(drawn, seen).real / np.vdot(drawn, drawn).real)
    assert abs(best - 1.0) < 0.01  # tapers cost the signal a little more than the noise's power
    left, without = (np.linalg.norm(seen - other) for other in (drawn, whole))
    assert left < without


def test_the_picture_says_that_there_are_gaps(view: BandView, slow_grid: ResponseGrid) -> None:
    tile = TileRecord(FIRST, FIRST / T, (FIRST + BINS) / T, 1.0, 1.0, 0, 0.0)
    asked = PosteriorSettings(tile.low, tile.high, 400, 0, "data", 0.5)
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((3, BINS, 2)).view(complex)[..., 0].astype(np.complex64)
    titles = []
    for one in (view, replace(view, gap_fraction=0.0312, gain=0.98)):
        one = replace(one, data=noise)
        result = Result((), (tile,), asked, OBSERVATION, 0.0, (), {}, views={FIRST: one})
        titles.append(plot_band(one, result, slow_grid).legends[0].get_title().get_text())
    assert "gaps" not in titles[0]
    assert "gaps: 3.12% of the samples, tapered in data and residual" in titles[1]
