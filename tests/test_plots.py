"""Pictures: what is drawn is where the numbers say, from waveforms and draws made apart."""

import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from slotflow import __version__
from slotflow.bands import whiten
from slotflow.config import ObservationSettings
from slotflow.conventions import TO_ECLIPTIC, rotate_sky
from slotflow.errors import InputError
from slotflow.noise import standard_psd, window_power, window_samples
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, PHI0, PSI, RA, other_image
from slotflow.plot_band import (
    own_bins,
    reconstructions,
    residual,
    turned_grid,
    whitened_waveforms,
    whiteness,
)
from slotflow.plot_corner import axis_limits, corner_columns
from slotflow.plot_sky import (
    directions,
    from_plane,
    map_longitude,
    sky_density,
    tangent_frame,
    to_plane,
)
from slotflow.plots import (
    match_truth,
    plot_band,
    plot_corner,
    plot_sky,
    plot_slots,
    write_plots,
)
from slotflow.response import ResponseGrid, response
from slotflow.results import BandView, PosteriorSettings, Result, SourcePosterior, TileRecord

OBSERVATION = ObservationSettings()
T = OBSERVATION.duration
FIRST, BINS = 60_000, 256
MARKED = "true sources above SNR 5"
TRUE = np.array(
    [
        [(FIRST + 110.3) / T, 0.1 / T**2, 3e-22, 1.2, 0.4, 0.3, 0.8, 2.0],
        [(FIRST + 150.8) / T, 0.2 / T**2, 4e-22, 6.2, -0.9, 1.2, 2.3, 5.0],
        [(FIRST + 222.1) / T, 0.0, 5e-22, 4.0, 0.1, 0.7, 1.4, 1.0],
    ]
)
WIDTHS = np.array([0.03 / T, 0.03 / T**2, 1.5e-23, 0.02, 0.02, 0.05, 0.05, 0.1])


@pytest.fixture(scope="module")
def grid() -> ResponseGrid:
    """A triangle of equal arms behind the Earth, to first order in its size."""
    n, radius, arm = 128, 1.495978707e11, 2.5e9
    times = np.arange(n) * T / n
    alpha = 2 * np.pi * times / 31_558_149.8
    eccentricity = arm / (2 * np.sqrt(3) * radius)
    beta = 2 * np.pi * np.arange(3)[:, None] / 3
    ecliptic = radius * np.stack(
        [
            np.cos(alpha) + eccentricity / 2 * (np.cos(2 * alpha - beta) - 3 * np.cos(beta)),
            np.sin(alpha) + eccentricity / 2 * (np.sin(2 * alpha - beta) - 3 * np.sin(beta)),
            -np.sqrt(3) * eccentricity * np.cos(alpha - beta),
        ],
        axis=1,
    )
    positions = np.einsum("ji,sjt->sit", TO_ECLIPTIC, ecliptic)
    return ResponseGrid(T, 0.0, times, positions, arm, window_samples(OBSERVATION.tukey, n).copy())


def posterior_of(true: np.ndarray, spread: float = 1.0, draws: int = 400) -> SourcePosterior:
    """Gaussian draws about a source, half of them its other image."""
    rng = np.random.default_rng([int(true[F0] * T)])
    samples = true + spread * WIDTHS * rng.standard_normal((draws, 8))
    samples[::2] = other_image(samples[::2])
    samples[:, [RA, PHI0]] %= 2 * np.pi
    samples[:, PSI] %= np.pi
    return SourcePosterior(samples, np.zeros(draws), 0.97, FIRST, 0, 30.0)


def psd() -> np.ndarray:
    return standard_psd((FIRST + np.arange(BINS)) / T, OBSERVATION)


def signal(sources: np.ndarray, grid: ResponseGrid) -> np.ndarray:
    """Strain data of sources over the band, by the uncompressed response of another kernel."""
    data = np.zeros((3, BINS), dtype=complex)
    for h, start in zip(*response(sources, grid), strict=True):
        for j in range(grid.n):
            if 0 <= start - FIRST + j < BINS:
                data[:2, start - FIRST + j] += h[:2, j]
    return data


def view_of(data: np.ndarray, sources: tuple[int, ...] = (), noise: float = 0.0) -> BandView:
    """The band of strain data plus unit noise times ``noise``; four components, three slots."""
    rng = np.random.default_rng(5)
    white = rng.standard_normal((3, BINS, 2)).view(complex)[..., 0] * np.sqrt(0.5)
    attention = np.array([[0.0, 0.9, 0.1, 0.0], [0.95, 0.0, 0.05, 0.0], [0.0, 0.0, 0.25, 0.75]])
    evidence = np.cumprod(np.vstack([np.ones(4), 1.0 - attention**2]), axis=0)
    return BandView(
        FIRST, (whiten(data, psd(), T, OBSERVATION.tukey) + noise * white).astype(np.complex64),
        psd(), attention, evidence, np.array([150.8, 110.3, 222.1, 40.5]),
        np.array([0.97, 0.93, 0.12]), sources,
    )  # fmt: skip


def result_of(
    sources: tuple[SourcePosterior, ...], view: BandView, low: int = 80, high: int = 176
) -> Result:
    tile = TileRecord(FIRST, (FIRST + low) / T, (FIRST + high) / T, 1.0, 1.0, 4, 2.0)
    asked = PosteriorSettings(tile.low, tile.high, 400, 0, "data", 0.5)
    return Result(
        sources, (tile,), asked, OBSERVATION, 0.0, (), {}, np.zeros((1, 4)), {FIRST: view}
    )


@pytest.fixture(scope="module")
def crowded(grid: ResponseGrid) -> Result:
    """Two sources of the band's own, a neighbour's, and noise."""
    view = view_of(signal(TRUE, grid), (0, 1), noise=1.0)
    return result_of(tuple(posterior_of(true) for true in TRUE), view)


def line(ax: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    found = next(one for one in ax.lines if one.get_label() == label)
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def pictures(result: Result, grid: ResponseGrid) -> dict[str, Figure]:
    view = result.views[FIRST]
    return {
        "band": plot_band(view, result, grid, TRUE),
        "slots": plot_slots(view),
        "corner": plot_corner(result.sources[1], TRUE[1]),
        "sky": plot_sky(result.sources[1], TRUE[1]),
    }


@pytest.fixture(scope="module")
def settings_before() -> dict[str, object]:
    from matplotlib import pyplot as plt

    plt.close("all")
    return dict(mpl.rcParams)


@pytest.fixture(scope="module")
def drawn(
    crowded: Result, grid: ResponseGrid, settings_before: dict[str, object]
) -> dict[str, Figure]:
    """One picture of each kind, made without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return pictures(crowded, grid)


# ---- the band


def test_drawn_residual_is_the_data_less_the_mean_waveforms(
    crowded: Result, drawn: dict[str, Figure], grid: ResponseGrid
) -> None:
    view = crowded.views[FIRST]
    scale = np.sqrt(view.psd * T / 2 * window_power(OBSERVATION.tukey))
    rest = view.data * scale
    for source in crowded.sources:
        rest = rest - np.mean([signal(s[None], grid) for s in source.samples[:64]], axis=0)
    for channel, name in enumerate("AE"):
        x, y = line(drawn["band"].axes[2], f"residual, {name}")
        np.testing.assert_allclose(x, 1e3 * (FIRST + np.arange(BINS)) / T)
        np.testing.assert_allclose(y, np.abs(rest / scale)[channel], atol=1e-5)


def test_drawn_spectrum_has_the_units_of_the_density(
    crowded: Result, drawn: dict[str, Figure], grid: ResponseGrid
) -> None:
    """In |A| and |E| noise has the rms sqrt S, and a source its waveform in the same unit."""
    view = crowded.views[FIRST]
    unit = np.sqrt(2 / T / window_power(OBSERVATION.tukey))  # of dt rfft(w x)
    for channel, ax in enumerate(drawn["band"].axes[:2]):
        strain = view.data[channel] * np.sqrt(view.psd[channel]) / unit
        np.testing.assert_allclose(line(ax, "data")[1], unit * np.abs(strain), rtol=1e-6)
        np.testing.assert_allclose(line(ax, r"noise, $\sqrt{S}$")[1], np.sqrt(psd()[channel]))
        x, y = line(ax, "source 0")
        draws = [signal(s[None], grid)[channel] for s in crowded.sources[0].samples[:64]]
        wanted = unit * np.abs(np.mean(draws, axis=0))
        np.testing.assert_allclose(y, np.interp(x, 1e3 * (FIRST + np.arange(BINS)) / T, wanted))
        assert ax.get_yscale() == "log"


def test_noise_alone_leaves_unit_power() -> None:
    view = view_of(np.zeros((3, BINS)), noise=1.0)
    empty = result_of((), view)
    rest = residual(view, [])
    seen = whiteness(rest, own_bins(view, empty))
    assert seen.power.size == 2 * 96
    assert seen.sigma == pytest.approx(1 / np.sqrt(192))
    assert seen.mean == pytest.approx(1.0, abs=4 * seen.sigma)
    assert seen.p_value > 1e-3
    assert whiteness(1.5 * rest, slice(0, BINS)).p_value < 1e-6


def test_an_injected_source_is_taken_out_whole(grid: ResponseGrid) -> None:
    for true in TRUE:
        data = signal(true[None], grid)
        view = view_of(1e3 * data, (0,))
        loud = true.copy()
        loud[AMPLITUDE] *= 1e3
        result = result_of((posterior_of(loud, spread=0.0),), view)
        rest = residual(view, reconstructions(view, result, grid))
        assert (np.abs(rest) ** 2).sum() < 1e-6 * (np.abs(view.data) ** 2).sum()


def test_sources_of_neighbours_are_subtracted_and_named(
    crowded: Result, drawn: dict[str, Figure]
) -> None:
    labels = [text.get_text() for text in drawn["band"].legends[0].get_texts()]
    assert [label for label in labels if label.startswith("source ")] == [
        f"source {i}: {1e3 * crowded.sources[i].f0:.5f} mHz, SNR 30.0" for i in (0, 1)
    ]
    assert "sources of neighbouring bands" in labels


def test_a_source_far_away_is_left_out(grid: ResponseGrid) -> None:
    far = TRUE[0].copy()
    far[F0] += 1000 / T
    view = view_of(np.zeros((3, BINS)))
    assert not reconstructions(view, result_of((posterior_of(far),), view), grid)


def test_a_narrow_range_is_tested_in_all_bins(crowded: Result) -> None:
    view = crowded.views[FIRST]
    assert own_bins(view, crowded) == slice(80, 176)
    assert own_bins(view, result_of((), view, 80, 90)) == slice(0, BINS)


def test_a_grid_of_another_duration_is_refused(crowded: Result, grid: ResponseGrid) -> None:
    other = ResponseGrid(T / 2, 0.0, grid.times / 2, grid.positions, grid.arm_length, grid.window)
    with pytest.raises(ValueError, match="expected a grid of"):
        plot_band(crowded.views[FIRST], crowded, other)


def test_on_a_turned_orbit_the_turned_source_is_the_same(grid: ResponseGrid) -> None:
    view = view_of(np.zeros((3, BINS)))
    here = whitened_waveforms(TRUE, view, OBSERVATION, grid)
    turned = turned_grid(grid, 0.7)
    there = whitened_waveforms(rotate_sky(TRUE, 0.7), view, OBSERVATION, turned)
    assert np.abs(there - here).max() < 1e-6 * np.abs(here).max()
    assert np.abs(whitened_waveforms(TRUE, view, OBSERVATION, turned) - here).max() > 1.0
    # and a result says by how much its orbit is turned
    view = view_of(signal(TRUE[:1], grid), (0,))
    source = posterior_of(rotate_sky(TRUE[:1], 0.7)[0], spread=0.0)
    result = replace(result_of((source,), view), rotation=0.7)
    rest = residual(view, reconstructions(view, result, grid))
    assert (np.abs(rest) ** 2).sum() < 1e-6 * (np.abs(view.data) ** 2).sum()
    assert list(match_truth(result, grid, rotate_sky(TRUE, 0.7))) == [0]
    assert not match_truth(result, grid, TRUE)


def test_truth_in_the_band_is_marked_at_its_frequency(
    drawn: dict[str, Figure], crowded: Result, grid: ResponseGrid
) -> None:
    for ax in drawn["band"].axes[:2]:
        np.testing.assert_allclose(line(ax, MARKED)[0], 1e3 * TRUE[:, F0])
    faint = TRUE[0].copy()
    faint[AMPLITUDE] /= 100
    outside = np.vstack([TRUE, faint])
    outside[0, F0] = 1e-3
    figure = plot_band(crowded.views[FIRST], crowded, grid, outside)
    np.testing.assert_allclose(line(figure.axes[0], MARKED)[0], 1e3 * TRUE[1:, F0])


def test_band_axes(drawn: dict[str, Figure], crowded: Result, grid: ResponseGrid) -> None:
    spectra, below = drawn["band"].axes[:2], drawn["band"].axes[2:]
    assert [ax.get_ylabel() for ax in spectra] == [
        "|A|  [Hz$^{-1/2}$]", "|E|  [Hz$^{-1/2}$]",
    ]  # fmt: skip
    assert below[0].get_xlabel() == "frequency [mHz]"
    view = crowded.views[FIRST]
    seen = whiteness(residual(view, reconstructions(view, crowded, grid)), slice(80, 176))
    title = below[1].get_title()
    assert f"mean {seen.mean:.3f}" in title
    assert f"KS p = {seen.p_value:.2g}" in title
    x, y = line(below[1], "unit noise: exp(-x)")
    np.testing.assert_allclose(y, np.exp(-x))


# ---- the corner plot


def test_corner_has_its_axes_units_and_truth(drawn: dict[str, Figure], crowded: Result) -> None:
    axes = np.array(drawn["corner"].axes).reshape(8, 8)
    bottom = [ax.get_xlabel().replace("\n", " ") for ax in axes[7]]
    assert bottom[F0] == r"$f_0 - \tilde{f}_0$ [nHz]"
    assert bottom[FDOT] == r"$\dot f$ [$10^{-16}$ Hz/s]"
    assert bottom[AMPLITUDE] == r"$\mathcal{A}$ [$10^{-22}$]"
    assert all(bottom[i].endswith("[deg]") for i in (RA, DEC, PSI, IOTA, PHI0))
    true = TRUE[1]
    expected = {
        F0: 1e9 * (true[F0] - np.median(crowded.sources[1].samples[:, F0])),
        AMPLITUDE: 4.0,
        RA: np.rad2deg(6.2),
        DEC: np.rad2deg(-0.9),
        PSI: np.rad2deg(1.2),
        IOTA: np.rad2deg(2.3),
        PHI0: np.rad2deg(5.0 - np.pi),
    }
    for index, value in expected.items():
        drawn_at = np.asarray(axes[index, index].lines[0].get_xdata(), dtype=float)
        # circular ones are drawn about the circular mean: any turn of the same angle
        period = {RA: 360.0, PSI: 90.0, PHI0: 180.0}.get(index, 1e9)
        away = np.mod(drawn_at - value + period / 2, period) - period / 2
        np.testing.assert_allclose(away, 0.0, atol=1e-6)
        low, high = axes[index, index].get_xlim()
        assert (low < drawn_at).all()
        assert (drawn_at < high).all()


def test_both_images_and_ra_through_zero_are_one_peak() -> None:
    true = TRUE[1].copy()
    true[[RA, PSI, PHI0]] = 2 * np.pi - 0.005, 0.5 * np.pi - 0.01, np.pi - 0.02
    source = posterior_of(true)
    assert np.ptp(source.samples[:, RA]) > 6.0  # split on the circle
    columns = corner_columns(source, true)
    for index in (RA, PSI, PHI0):
        assert columns.values[:, index].std() == pytest.approx(np.rad2deg(WIDTHS[index]), rel=0.15)
        assert columns.truth is not None
        away = columns.truth[index] - columns.values[:, index].mean()
        assert abs(away) < np.rad2deg(WIDTHS[index])


def test_limits_hold_a_near_truth_and_not_a_far_one() -> None:
    values = np.linspace(0.0, 1.0, 101)
    assert axis_limits(values, 1.5).high > 1.5
    assert axis_limits(values, 50.0).high < 1.2
    low, high = axis_limits(np.full(10, 3.0), None)
    assert low < 3.0 < high


def test_corner_of_equal_draws_and_of_a_far_truth() -> None:
    far = TRUE[0].copy()
    far[AMPLITUDE] *= 100
    figure = plot_corner(posterior_of(TRUE[0], spread=0.0), far)
    assert "300.000" in {text.get_text() for text in figure.texts}


# ---- the sky


def test_sky_density_integrates_to_one_and_bounds_the_shares() -> None:
    rng = np.random.default_rng(1)
    ra, dec = 1.0 + 0.1 * rng.standard_normal(1500), 0.08 * rng.standard_normal(1500)
    samples = np.tile(TRUE[0], (1500, 1))
    samples[:, RA], samples[:, DEC] = ra, dec
    density = sky_density(SourcePosterior(samples, np.zeros(1500), 1.0, FIRST, 0, 9.0))
    lon, lat = np.meshgrid(np.linspace(0, 2 * np.pi, 361), np.linspace(-1.5, 1.5, 181))
    height = density.at(directions(lon, lat))
    cell = 2 * np.pi / 360 * 3.0 / 180
    assert (height * np.cos(lat)).sum() * cell == pytest.approx(1.0, rel=0.01)
    # the region of 90% of two Gaussians: -2 ln 0.1 in squared widths, times pi s1 s2
    area = (np.cos(lat) * (height > density.heights()[0])).sum() * cell
    assert area == pytest.approx(np.pi * 0.1 * 0.08 * -2 * np.log(0.1), rel=0.25)
    shares = [(density.at(density.draws) >= h).mean() for h in density.heights()]
    np.testing.assert_allclose(shares, [0.9, 0.5], atol=0.01)


def test_the_tangent_plane_is_east_and_north_in_degrees() -> None:
    frame = tangent_frame(directions(np.array(0.3), np.array(0.5)))
    step = np.deg2rad(0.1)
    near = directions(np.array([0.3 + step / np.cos(0.5), 0.3]), np.array([0.5, 0.5 + step]))
    np.testing.assert_allclose(to_plane(near, frame), [[0.1, 0.0], [0.0, 0.1]], atol=1e-4)
    np.testing.assert_allclose(from_plane(*to_plane(near, frame).T, frame), near, atol=1e-12)
    behind = -directions(np.array([0.3]), np.array([0.5]))
    assert np.isnan(to_plane(behind, frame)).all()
    assert np.linalg.det(tangent_frame(np.array([0.0, 0.0, 1.0]))) == pytest.approx(1.0)


def test_truth_is_where_it_is_in_the_sky(drawn: dict[str, Figure], crowded: Result) -> None:
    whole, around = drawn["sky"].axes
    assert whole.name == "mollweide"
    x, y = line(whole, "truth")
    # the map's centre is the posterior's mean to 30 degrees: 360 for 355; east is left
    assert x[0] == pytest.approx(2 * np.pi - 6.2)
    assert y[0] == pytest.approx(-0.9)
    assert map_longitude(np.array([0.1]), 0.0) < 0.0
    low, high = around.get_xlim()
    assert low > high
    x, y = line(around, "truth")
    dx, dy = line(around, "draws")
    assert abs(x[0] - dx.mean()) < 1.0
    assert abs(y[0] - dy.mean()) < 1.0
    assert np.std(dy) == pytest.approx(np.rad2deg(WIDTHS[DEC]), rel=0.15)
    assert np.std(dx) == pytest.approx(np.rad2deg(WIDTHS[RA]) * np.cos(0.9), rel=0.15)
    assert (around.get_xlabel(), around.get_ylabel()) == ("east [deg]", "north [deg]")


def test_a_sky_through_zero_is_not_split() -> None:
    true = TRUE[0].copy()
    true[RA] = 0.0
    figure = plot_sky(posterior_of(true), true)
    around = figure.axes[1]
    draws = np.array(line(around, "draws"))
    assert np.abs(draws).max() < 12.0
    assert line(figure.axes[0], "truth")[0][0] == pytest.approx(0.0, abs=1e-9)


def test_an_unknown_sky_and_a_far_truth() -> None:
    source = posterior_of(TRUE[0])
    rng = np.random.default_rng(2)
    source.samples[:, RA] = rng.uniform(0, 2 * np.pi, len(source.samples))
    source.samples[:, DEC] = np.arcsin(rng.uniform(-1, 1, len(source.samples)))
    assert len(plot_sky(source, TRUE[0]).axes) == 2
    figure = plot_sky(posterior_of(TRUE[0]), TRUE[1])
    assert "truth" not in {one.get_label() for one in figure.axes[1].lines}
    cosine = directions(TRUE[0, RA], TRUE[0, DEC]) @ directions(TRUE[1, RA], TRUE[1, DEC])
    away = float(figure.axes[1].get_title().split("truth ")[1].split("°")[0])
    assert away == pytest.approx(np.rad2deg(np.arccos(cosine)), abs=5.0)


# ---- the slots


def test_slots_show_attention_by_frequency(crowded: Result, drawn: dict[str, Figure]) -> None:
    view = crowded.views[FIRST]
    top, below = drawn["slots"].axes[:2]
    order = [3, 1, 0, 2]
    np.testing.assert_array_equal(top.images[0].get_array(), view.attention[:, order])
    np.testing.assert_array_equal(below.images[0].get_array(), view.evidence[:, order])
    assert [t.get_text() for t in below.get_xticklabels()] == ["40.5", "110.3", "150.8", "222.1"]
    assert [t.get_text() for t in top.get_yticklabels()] == [
        "slot 0\np = 0.97", "slot 1\np = 0.93", "slot 2\np = 0.12",
    ]  # fmt: skip
    written = [[t.get_text() for t in top.texts[4 * i : 4 * i + 4]] for i in range(3)]
    assert written[0] == ["0", "0.90", "0", "0.10"]


def test_slots_of_a_band_without_components() -> None:
    empty = BandView(
        FIRST, np.zeros((3, BINS), np.complex64), psd(), np.zeros((3, 0)), np.zeros((4, 0)),
        np.zeros(0), np.zeros(3), (),
    )  # fmt: skip
    figure = plot_slots(empty)
    figure.canvas.draw()
    assert [ax.texts[0].get_text() for ax in figure.axes] == ["no component"] * 2


# ---- all of them


def _boxes(figure: Figure) -> list[tuple[str, Any, bool]]:
    """Every text that is drawn, its box, and whether it is slanted."""
    figure.canvas.draw()
    off = set()  # labels of ticks beyond an axis's ends
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    off.add(tick.label1)
    texts = [t for t in figure.findobj(mpl.text.Text) if t.get_visible() and t.get_text().strip()]
    return [
        (t.get_text(), t.get_window_extent(), t.get_rotation() % 90 != 0)
        for t in texts
        if t not in off
    ]


@pytest.mark.parametrize("kind", ["band", "slots", "corner", "sky"])
def test_no_text_overlaps_or_is_cut(kind: str, drawn: dict[str, Figure]) -> None:
    figure = drawn[kind]
    boxes = _boxes(figure)
    assert len(boxes) > 10
    for (a, one, slant_a), (b, other, slant_b) in combinations(boxes, 2):
        if slant_a or slant_b:
            continue  # the box of a slanted text is larger than the text
        overlap_x = min(one.x1, other.x1) - max(one.x0, other.x0)
        overlap_y = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert min(overlap_x, overlap_y) < 1.0, (a, b)
    for text, box, _ in boxes:
        assert box.x0 > -1, text
        assert box.y0 > -1, text
        assert box.x1 < figure.bbox.width + 1, text
        assert box.y1 < figure.bbox.height + 1, text


def test_all_that_is_drawn_is_finite(drawn: dict[str, Figure]) -> None:
    for figure in drawn.values():
        for ax in figure.axes:
            for one in ax.lines:
                assert np.isfinite(np.asarray(one.get_xydata(), dtype=float)).all(), ax
            for image in ax.images:
                assert np.isfinite(np.asarray(image.get_array())).all()


def test_pyplot_knows_nothing_of_them(
    settings_before: dict[str, object], drawn: dict[str, Figure]
) -> None:
    from matplotlib import pyplot as plt

    assert len(drawn) == 4
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == settings_before


def test_the_modules_do_not_load_matplotlib() -> None:
    code = "import sys, slotflow.plots; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("truth", "message"), [(np.zeros(7), "expected"), (np.full(8, np.nan), "finite")]
)
def test_a_wrong_truth_is_refused(crowded: Result, truth: np.ndarray, message: str) -> None:
    for function in (plot_corner, plot_sky):
        with pytest.raises(ValueError, match=message):
            function(crowded.sources[0], truth)


# ---- the folder


def test_truth_is_matched_by_waveform(crowded: Result, grid: ResponseGrid) -> None:
    """Of two within a bin the one like the source, not the nearer in frequency."""
    decoy = TRUE[0].copy()
    decoy[F0], decoy[DEC], decoy[PHI0] = crowded.sources[0].f0, -1.0, 0.1
    found = match_truth(crowded, grid, np.vstack([decoy, TRUE]))
    assert sorted(found) == [0, 1]
    np.testing.assert_array_equal(found[0], TRUE[0])
    np.testing.assert_array_equal(found[1], TRUE[1])
    faint = TRUE[:1].copy()
    faint[0, F0] += 1.5 / T
    assert not match_truth(crowded, grid, faint)


def test_folder_of_pictures(crowded: Result, grid: ResponseGrid, tmp_path: Path) -> None:
    model: Any = SimpleNamespace(grid=grid)
    folder = tmp_path / "new" / "pictures"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    paths = write_plots(crowded, folder, model, TRUE, most=1)
    names = ["band-60000.png", "slots-60000.png", "corner-0.png", "sky-0.png"]
    assert [path.name for path in paths] == names
    assert sorted(p.name for p in folder.iterdir()) == sorted([*names, "notes.txt"])
    for path in paths:
        with Image.open(path) as image:
            assert image.text["Software"] == f"slotflow {__version__}"
            assert image.width >= 1000

    with pytest.raises(InputError, match=r"band-60000\.png: 4 pictures of another run"):
        write_plots(crowded, folder, model)
    empty = result_of((), crowded.views[FIRST])
    assert write_plots(empty, folder, model, force=True) == []
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


def test_folder_that_cannot_be(crowded: Result, grid: ResponseGrid, tmp_path: Path) -> None:
    model: Any = SimpleNamespace(grid=grid)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: cannot be used"):
        write_plots(crowded, tmp_path / "file", model)
    with pytest.raises(InputError, match=r"most: expected at least 1; got 0"):
        write_plots(crowded, tmp_path / "x", model, most=0)
    few = result_of((posterior_of(TRUE[0], draws=20),), crowded.views[FIRST])
    with pytest.raises(InputError, match=r"samples: 20; pictures need at least 50"):
        write_plots(few, tmp_path / "x", model)
    assert not (tmp_path / "x").exists()
