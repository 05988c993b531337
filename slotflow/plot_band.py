"""A band's spectrum, the sources that were found in it, and what they leave."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.config import ObservationSettings
from slotflow.conventions import TO_ECLIPTIC
from slotflow.noise import window_power
from slotflow.parameters import F0
from slotflow.plot_style import (
    COLOURS,
    GREY,
    LABEL,
    SMALL,
    SOURCES,
    TRUTH,
    checked_truth,
    new_figure,
)
from slotflow.response import ResponseGrid
from slotflow.results import BandView, Result
from slotflow.waveform import response_ae

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

DRAWS: Final = 64  # of each posterior, whose waveforms are averaged
TRUTH_SNR: Final = 5.0  # of the sources marked: below it hardly any is found
FEWEST_BINS: Final = 16  # of the band's own, below which all are tested


class Reconstruction(NamedTuple):
    """One source's waveform in a band, whitened.

    ``source`` is its index in the result, ``waveform`` (2, K) the posterior mean in A and E,
    ``low`` and ``high`` (2, K) the 5% and 95% quantiles of the draws' modulus.
    """

    source: int
    waveform: Complex
    low: Float
    high: Float


class Whiteness(NamedTuple):
    """How the residual's power compares with noise of unit variance.

    ``power`` (2 n,) |r|^2 of A and E in the band's own bins, ``mean`` of it (1 for noise) with
    the noise's own standard deviation ``sigma``, ``p_value`` of a Kolmogorov-Smirnov test
    against the exponential law of mean 1.
    """

    power: Float
    mean: float
    sigma: float
    p_value: float


def turned_grid(grid: ResponseGrid, rotation: float) -> ResponseGrid:
    """Return the grid of the orbit turned about the ecliptic pole by an angle (rad).

    For data of another starting phase than the model's, whose sources stand in the data's own
    sky: there the orbit is the model's, turned.
    """
    if rotation == 0.0:
        return grid
    cosine, sine = np.cos(rotation), np.sin(rotation)
    pole = np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])
    turn = TO_ECLIPTIC.T @ pole @ TO_ECLIPTIC
    return replace(grid, positions=np.einsum("ij,sjt->sit", turn, grid.positions))


def whitened_waveforms(
    sources: Float, view: BandView, observation: ObservationSettings, grid: ResponseGrid
) -> Complex:
    """Return the sources' responses in A and E over a band, whitened as it is: (S, 2, K).

    Args:
        sources: (S, 8).
        view: the band.
        observation: what the model takes for granted.
        grid: the slow grid of the data's orbit; a source reaches over its n bins.

    Raises:
        ValueError: a grid of another duration than the observation's.
    """
    if grid.duration != observation.duration:
        raise ValueError(f"expected a grid of {observation.duration} s; got {grid.duration} s")
    bins = view.data.shape[1]
    response, first = response_ae(sources, grid)
    out = np.zeros((len(response), 2, bins), dtype=np.complex128)
    for row, start in zip(range(len(out)), first - view.first_bin, strict=True):
        low, high = max(int(start), 0), min(int(start) + grid.n, bins)
        if high > low:
            out[row, :, low:high] = response[row, :, low - start : high - start]
    scale = 0.5 * observation.duration * window_power(observation.tukey)
    return np.asarray(out * (view.gain / np.sqrt(view.psd[:2] * scale)))


def reconstructions(view: BandView, result: Result, grid: ResponseGrid) -> list[Reconstruction]:
    """Return the waveforms of all sources of a result that reach into a band.

    ``grid`` is the model's; it is turned where the result says that the data's orbit is. Sources
    of neighbouring bands are among them, since the bands overlap. The posterior mean of
    the waveform is what has the least expected error; both images of (psi, phi0) are the same
    waveform.
    """
    duration, bins = result.observation.duration, view.data.shape[1]
    grid, made = turned_grid(grid, result.rotation), []
    for number, source in enumerate(result.sources):
        place = source.f0 * duration - view.first_bin
        if -grid.n // 2 < place < bins + grid.n // 2:
            draws = whitened_waveforms(source.samples[:DRAWS], view, result.observation, grid)
            low, high = np.quantile(np.abs(draws), (0.05, 0.95), axis=0)
            made.append(Reconstruction(number, draws.mean(axis=0), low, high))
    return made


def residual(view: BandView, made: list[Reconstruction]) -> Complex:
    """Return the whitened A and E less the sum of the waveforms: (2, K)."""
    rest = view.data[:2].astype(np.complex128)
    for one in made:
        rest -= one.waveform
    return rest


def own_bins(view: BandView, result: Result) -> slice:
    """Return the bins whose sources are reported from this band; all where they are few."""
    bins, duration = view.data.shape[1], result.observation.duration
    for tile in result.tiles:
        if tile.first_bin == view.first_bin:
            low = max(int(np.ceil(tile.low * duration)) - view.first_bin, 0)
            high = min(int(np.ceil(tile.high * duration)) - view.first_bin, bins)
            if high - low >= FEWEST_BINS:
                return slice(low, high)
    return slice(0, bins)


def whiteness(rest: Complex, bins: slice) -> Whiteness:
    """Compare a residual's power with the exponential law of unit noise, in some of its bins."""
    import scipy.stats

    power = np.abs(rest[:, bins]).reshape(-1) ** 2
    p_value = float(scipy.stats.kstest(power, "expon").pvalue)
    return Whiteness(power, float(power.mean()), float(power.size**-0.5), p_value)


def plot_band(
    view: BandView, result: Result, grid: ResponseGrid, truth: Float | None = None
) -> "Figure":
    """Draw |A| and |E| with the sources found, the residual, and the law of its power.

    Args:
        view: the band.
        result: whose sources are subtracted: all that reach into the band.
        grid: the model's slow grid, ``Model.grid``.
        truth: (S, 8) true sources; those in the band whose SNR in it is above
            :data:`TRUTH_SNR` are marked at their frequency.
    """
    truth = checked_truth(truth, rows=1)
    made = reconstructions(view, result, grid)
    rest = residual(view, made)
    own = own_bins(view, result)
    bins = np.arange(view.data.shape[1], dtype=np.float64) + view.first_bin
    frequency = np.asarray(bins / result.observation.duration * 1e3)
    figure = new_figure(7.0, 10.0)
    axes = figure.subplots(4, 1, height_ratios=(3.0, 3.0, 2.2, 2.2))
    for channel, name in enumerate("AE"):
        _spectrum(axes[channel], frequency, view, made, channel, name)
    _residual(axes[2], frequency, rest)
    for ax in axes[:3]:
        ax.axvspan(frequency[own.start], frequency[own.stop - 1], color="0.94", zorder=0)
        ax.set_xlim(frequency[0], frequency[-1])
        ax.ticklabel_format(axis="x", useOffset=False)
        ax.locator_params(axis="x", nbins=6)
        ax.tick_params(labelsize=SMALL, labelbottom=ax is axes[2])
    if truth is not None:
        _mark(axes[:2], 1e3 * _loud(truth, view, result, grid))
    axes[2].set_xlabel("frequency [mHz]", fontsize=LABEL)
    _law(axes[3], whiteness(rest, own), own.stop - own.start)
    handles, labels = axes[0].get_legend_handles_labels()
    names = _names(view, result, made)
    figure.legend(
        handles, [names.get(label, label) for label in labels], loc="outside upper center",
        ncols=2, fontsize=SMALL, frameon=False,
        title=f"Band from bin {view.first_bin}; its own range shaded{_gaps(view)}",
        title_fontsize=LABEL,
    )  # fmt: skip
    return figure


def _gaps(view: BandView) -> str:
    """Say that there are gaps: their taper widens lines and correlates neighbouring bins."""
    if view.gap_fraction == 0.0:
        return ""
    return f"\ngaps: {100 * view.gap_fraction:.3g}% of the samples, tapered in data and residual"


def _names(view: BandView, result: Result, made: list[Reconstruction]) -> dict[str, str]:
    """Legend entries of this band's own sources, by the labels of their lines."""
    names = {}
    for one in made:
        source = result.sources[one.source]
        names[f"source {one.source}"] = (
            f"source {one.source}: {1e3 * source.f0:.5f} mHz, SNR {source.snr:.1f}"
        )
    return names


def _spectrum(
    ax: "Axes", frequency: Float, view: BandView, made: list[Reconstruction], channel: int,
    name: str,
) -> None:  # fmt: skip
    noise = np.sqrt(view.psd[channel])
    ax.semilogy(frequency, noise * np.abs(view.data[channel]), color=GREY, lw=0.9, label="data")
    ax.plot(frequency, noise, color="black", lw=1.2, ls=":", label=r"noise, $\sqrt{S}$")
    if made:
        total = np.abs(sum(one.waveform[channel] for one in made))
        ax.plot(frequency, noise * total, color="black", alpha=0.3, lw=4.0, label="sum of sources")
    neighbours = own = 0
    for one in made:
        if one.source in view.sources:
            colour, style = SOURCES[own % len(SOURCES)], "-"
            ax.fill_between(
                frequency, noise * one.low[channel], noise * one.high[channel], color=colour,
                alpha=0.3, lw=0,
            )  # fmt: skip
            label, width = f"source {one.source}", 1.6
            own += 1
        else:
            colour, style, width = "0.35", "--", 1.0
            label = "sources of neighbouring bands" if not neighbours else "_"
            neighbours += 1
        line = noise * np.abs(one.waveform[channel])
        there = line > 0.0  # a waveform ends where its grid does
        ax.plot(frequency[there], line[there], color=colour, ls=style, lw=width, label=label)
    highest = max(float((noise * np.abs(view.data[channel])).max()), float(noise.max()))
    ax.set_ylim(0.15 * float(noise.min()), 2.5 * highest)
    ax.set_ylabel(rf"|{name}|  [Hz$^{{-1/2}}$]", fontsize=LABEL)


def _residual(ax: "Axes", frequency: Float, rest: Complex) -> None:
    for channel, (name, marker) in enumerate((("A", "o"), ("E", "^"))):
        ax.plot(
            frequency, np.abs(rest[channel]), ls="", marker=marker, ms=3.2, mew=0,
            color=COLOURS[channel], alpha=0.75, label=f"residual, {name}",
        )  # fmt: skip
    ax.axhline(np.sqrt(np.log(2.0)), color="black", lw=1.0, label="noise: median")
    ax.axhline(np.sqrt(-np.log(1e-3)), color="black", lw=1.0, ls="--", label="99.9%")
    ax.set_ylim(0.0, max(3.2, 1.05 * float(np.abs(rest).max())))
    ax.set_ylabel("|residual| / noise", fontsize=LABEL)
    ax.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=SMALL, frameon=False,
        handletextpad=0.3, columnspacing=1.2,
    )  # fmt: skip


def _law(ax: "Axes", seen: Whiteness, bins: int) -> None:
    edges = np.linspace(0.0, max(8.0, float(seen.power.max()) * 1.001), 33).tolist()
    ax.hist(
        seen.power, edges, density=True, histtype="stepfilled", color=COLOURS[4], alpha=0.7,
        label="residual power",
    )  # fmt: skip
    ax.semilogy(edges, np.exp(-np.array(edges)), color="black", lw=1.3, label="unit noise: exp(-x)")
    lowest = 0.3 / (seen.power.size * (edges[1] - edges[0]))
    ax.set_ylim(lowest, 3.0)
    ax.set_xlim(0.0, edges[-1])
    ax.set_xlabel(r"|residual|$^2$ / noise power", fontsize=LABEL)
    ax.set_ylabel("density", fontsize=LABEL)
    ax.legend(loc="upper right", fontsize=SMALL, frameon=False)
    ax.set_title(
        f"mean {seen.mean:.3f} (noise: 1 ± {seen.sigma:.3f}), KS p = {seen.p_value:.2g};"
        f" {bins} bins of A, E",
        fontsize=SMALL,
    )


def _loud(truth: Float, view: BandView, result: Result, grid: ResponseGrid) -> Float:
    """Return the frequencies (Hz) of the true sources that the band could show: (n,)."""
    place = truth[:, F0] * result.observation.duration - view.first_bin
    inside = truth[(place >= 0.0) & (place <= view.data.shape[1] - 1)]
    there = turned_grid(grid, result.rotation)
    signals = whitened_waveforms(inside, view, result.observation, there)
    loud = 2.0 * (np.abs(signals) ** 2).sum(axis=(1, 2)) > TRUTH_SNR**2
    return np.asarray(inside[loud, F0])


def _mark(axes: "NDArray[np.object_]", inside: Float) -> None:
    """Triangles at the top of the panels, at frequencies in mHz."""
    for ax in axes:
        ax.plot(
            inside, np.full(inside.size, 0.965), ls="", marker="v", ms=7, color=TRUTH,
            mec="black", mew=0.6, transform=ax.get_xaxis_transform(), clip_on=False,
            label=f"true sources above SNR {TRUTH_SNR:g}",
        )  # fmt: skip
