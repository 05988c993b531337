"""Where in the sky a source is: the whole sphere, and around the peak."""

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.conventions import TO_ECLIPTIC
from slotflow.parameters import DEC, RA
from slotflow.plot_style import (
    COLOURS,
    GREY,
    LABEL,
    SMALL,
    TRUTH,
    checked_truth,
    circular_centre,
    new_figure,
)
from slotflow.results import SourcePosterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Float = NDArray[np.float64]

MOST_DRAWS: Final = 1500
STEP: Final = np.deg2rad(2.0)  # of the map of the whole sky
FINE: Final = 121  # points along each side of the map around the peak
WIDEST: Final = np.deg2rad(40.0)  # of that map's radius
NARROWEST: Final = np.deg2rad(0.02)  # kernel, so that equal draws have a density, too
LEVELS: Final = (0.9, 0.5)


class SkyDensity(NamedTuple):
    """A smoothed posterior on the sphere.

    ``draws`` (n, 3) unit vectors, ``width`` (rad) of the kernel.
    """

    draws: Float
    width: float

    def at(self, points: Float) -> Float:
        """Return the density (1/sr) at unit vectors: (..., 3) -> (...)."""
        flat = points.reshape(-1, 3)
        peak = 1.0 / (2.0 * np.pi * self.width**2)  # of a narrow von Mises-Fisher density
        out = np.empty(len(flat))
        for start in range(0, len(flat), 1024):
            cosine = flat[start : start + 1024] @ self.draws.T
            out[start : start + 1024] = np.exp((cosine - 1.0) / self.width**2).mean(axis=1)
        return np.asarray(peak * out).reshape(points.shape[:-1])

    def heights(self) -> list[float]:
        """Return the densities that bound the regions of :data:`LEVELS`, ascending."""
        return [float(h) for h in np.quantile(self.at(self.draws), [1.0 - p for p in LEVELS])]


def directions(ra: Float, dec: Float) -> Float:
    """Return unit vectors of right ascension and declination (rad): (...) -> (..., 3)."""
    return np.stack([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)], axis=-1)


def sky_density(source: SourcePosterior) -> SkyDensity:
    """Smooth a posterior by the median distance of its draws to their sqrt(n)-th neighbour."""
    samples = source.samples[:MOST_DRAWS]
    draws = directions(samples[:, RA], samples[:, DEC])
    n = len(draws)
    near = min(int(np.sqrt(n)) + 1, n - 1)
    # from chords: the cosine of a small angle has lost its digits
    chord2 = np.maximum(2.0 - 2.0 * draws @ draws.T, 0.0)
    width = float(np.median(np.sqrt(np.partition(chord2, near, axis=1)[:, near])))
    return SkyDensity(draws, float(np.clip(width, NARROWEST, np.deg2rad(15.0))))


def plot_sky(source: SourcePosterior, truth: Float | None = None) -> "Figure":
    """Draw the posterior on the whole sky (Mollweide, ICRS) and in the plane around its peak.

    East is to the left. The map's centre follows the posterior, so that it is not split.

    Args:
        source: the posterior.
        truth: (8,) the true parameters.
    """
    truth = checked_truth(truth)
    figure = new_figure(7.0, 9.2)
    grid = figure.add_gridspec(2, 1, height_ratios=(1.0, 1.5))
    centre = circular_centre(source.samples[:, RA], 2.0 * np.pi)
    centre = float(np.round(centre / (np.pi / 6.0)) * np.pi / 6.0)
    whole, around = figure.add_subplot(grid[0], projection="mollweide"), figure.add_subplot(grid[1])
    density = sky_density(source)
    _whole(whole, density, centre, truth)
    _around_peak(around, density, truth)
    figure.suptitle(
        f"{1e3 * source.f0:.6f} mHz, SNR {source.snr:.1f}, P(source) {source.probability:.2f}",
        fontsize=LABEL + 1.0,
    )
    return figure


def map_longitude(ra: Float, centre: float) -> Float:
    """Return the abscissa on the map (rad, in [-pi, pi)) of right ascensions, east to the left."""
    return np.asarray(np.mod(centre - ra + np.pi, 2.0 * np.pi) - np.pi)


def _fading() -> "Colormap":
    """From transparent to blue, with a lightness that falls all the way."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    ends = [(*to_rgba(COLOURS[4])[:3], 0.0), to_rgba(COLOURS[4]), to_rgba(COLOURS[0])]
    return LinearSegmentedColormap.from_list("fading", ends)


def _whole(ax: "Axes", density: SkyDensity, centre: float, truth: Float | None) -> None:
    x = np.linspace(-np.pi, np.pi, round(2.0 * np.pi / STEP) + 1)
    dec = np.linspace(-0.5 * np.pi, 0.5 * np.pi, round(np.pi / STEP) + 1)
    lon, lat = np.meshgrid(x, dec)
    shown = density._replace(width=max(density.width, 1.2 * STEP))
    height = shown.at(directions(centre - lon, lat))
    ax.pcolormesh(lon, lat, height, cmap=_fading(), shading="gouraud", rasterized=True, vmin=0.0)
    if shown.width == density.width:  # else the regions are smaller than the map can show
        ax.contour(
            lon, lat, height, levels=density.heights(), colors=COLOURS[0], linewidths=1.2,
            linestyles=["--", "-"],
        )  # fmt: skip
    _ecliptic(ax, centre)
    if truth is not None:
        ax.plot(
            map_longitude(truth[[RA]], centre), truth[[DEC]], ls="", marker="*", ms=13,
            color=TRUTH, mec="black", mew=0.7, label="truth",
        )  # fmt: skip
    ax.grid(color=GREY, lw=0.4)
    _hours(ax, centre, south=float(density.draws[:, 2].mean()) > 0.0)
    ax.set_title("whole sky, ICRS; dotted: the ecliptic", fontsize=SMALL + 0.5, pad=8.0)


def _hours(ax: "Axes", centre: float, south: bool) -> None:
    """Label the meridians in hours, in the hemisphere where the posterior is not."""
    dec = np.deg2rad(-67.0 if south else 67.0)
    ticks = np.deg2rad(np.arange(-120.0, 121.0, 60.0))
    ax.set_xticks(ticks, [""] * ticks.size)
    ax.set_yticks(np.deg2rad([-60.0, -30.0, 0.0, 30.0, 60.0]))
    ax.tick_params(labelsize=SMALL)
    for x in ticks:
        hour = round(np.mod(centre - x, 2.0 * np.pi) * 12.0 / np.pi) % 24
        ax.text(
            x, dec, f"{hour}h", fontsize=SMALL, ha="center", va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip


def _ecliptic(ax: "Axes", centre: float) -> None:
    along = np.linspace(0.0, 2.0 * np.pi, 721)
    vectors = directions(along, np.zeros_like(along)) @ TO_ECLIPTIC
    x = map_longitude(np.arctan2(vectors[:, 1], vectors[:, 0]), centre)
    order = np.argsort(x)
    ax.plot(
        x[order], np.arcsin(vectors[order, 2]), color=COLOURS[2], lw=1.0, ls=":", label="ecliptic"
    )


def tangent_frame(centre: Float) -> Float:
    """Return east, north and outward unit vectors at a direction: (3,) -> (3, 3) rows."""
    pole = np.array([0.0, 0.0, 1.0]) if abs(centre[2]) < 0.999999 else np.array([0.0, 1.0, 0.0])
    east = np.cross(pole, centre)
    east /= np.linalg.norm(east)
    return np.stack([east, np.cross(centre, east), centre])


def to_plane(points: Float, frame: Float) -> Float:
    """Project unit vectors on the tangent plane, degrees east and north: (n, 3) -> (n, 2).

    Those more than 80 degrees away become NaN.
    """
    local = points @ frame.T
    away = np.where(local[:, 2] > np.cos(np.deg2rad(80.0)), local[:, 2], np.nan)
    return np.asarray(np.rad2deg(local[:, :2] / away[:, None]))


def from_plane(east: Float, north: Float, frame: Float) -> Float:
    """Invert :func:`to_plane`: two (...) in degrees -> (..., 3)."""
    x, y = np.deg2rad(east)[..., None], np.deg2rad(north)[..., None]
    points = x * frame[0] + y * frame[1] + frame[2]
    return np.asarray(points / np.linalg.norm(points, axis=-1, keepdims=True))


def _around_peak(ax: "Axes", density: SkyDensity, truth: Float | None) -> None:
    peak = density.draws[int(np.argmax(density.at(density.draws)))]
    frame = tangent_frame(peak)
    half = _half_side(density, peak)
    east, north = np.meshgrid(np.linspace(-half, half, FINE), np.linspace(-half, half, FINE))
    draws = to_plane(density.draws, frame)
    draws = draws[np.isfinite(draws[:, 0])]
    ax.plot(
        draws[:, 0], draws[:, 1], ls="", marker=".", ms=2.5, color=GREY, zorder=1, label="draws"
    )
    lines = ax.contour(
        east, north, density.at(from_plane(east, north, frame)), levels=density.heights(),
        colors=COLOURS[0], linewidths=1.6, linestyles=["--", "-"],
    )  # fmt: skip
    ra, dec = np.mod(np.arctan2(peak[1], peak[0]), 2.0 * np.pi), np.arcsin(peak[2])
    title = rf"around $\alpha$ = {np.rad2deg(ra):.2f}°, $\delta$ = {np.rad2deg(dec):.2f}°"
    if truth is not None:
        title += _star(ax, directions(truth[[RA]], truth[[DEC]]), frame, half)
    marks, labels = ax.get_legend_handles_labels()
    ax.legend(
        [*marks, *lines.legend_elements()[0]], [*labels, *(f"{100 * p:.0f}%" for p in LEVELS)],
        fontsize=SMALL, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=5, frameon=False,
    )  # fmt: skip
    ax.set_xlim(half, -half)
    ax.set_ylim(-half, half)
    ax.set_aspect("equal")
    ax.set_title(title, fontsize=SMALL + 0.5)
    ax.set_xlabel("east [deg]", fontsize=LABEL)
    ax.set_ylabel("north [deg]", fontsize=LABEL)


def _half_side(density: SkyDensity, peak: Float) -> float:
    """Half the side (deg, in the plane) of the square around a peak that shows what is near it."""
    angle = np.arccos(np.clip(density.draws @ peak, -1.0, 1.0))
    radius = 1.15 * float(np.quantile(angle[angle < WIDEST], 0.99))
    return float(np.rad2deg(np.tan(np.clip(radius, 3.0 * density.width, WIDEST))))


def _star(ax: "Axes", place: Float, frame: Float, half: float) -> str:
    """Mark a direction (1, 3) where it is in the plane's square; say how far it is."""
    x, y = to_plane(place, frame)[0]
    if max(abs(x), abs(y)) < half:
        ax.plot(
            x, y, ls="", marker="*", ms=15, color=TRUTH, mec="black", mew=0.8, zorder=4,
            label="truth",
        )  # fmt: skip
    away = np.rad2deg(np.arccos(np.clip(place[0] @ frame[2], -1.0, 1.0)))
    return f"; truth {away:.3g}° from the peak"
