"""By which density a band is whitened: the model's, the data's own, or a table of the user's.

The network was trained on bands whitened by the model's density, with the noise level of A and
E left to the component search, which estimates it from each band. Another density enters as a
change of shape about the band's centre, where it agrees with the model's, and as a level: a
density that is exactly the model's changes nothing.
"""

from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from slotflow.assumptions import check_level
from slotflow.bands import Spectrum, Tile, level, trained_range, whiten
from slotflow.config import Preset
from slotflow.errors import InputError
from slotflow.noise import standard_psd, window_power
from slotflow.noise_table import interpolated_density, read_noise_table
from slotflow.response import tdi2_factor
from slotflow.results import PSD_NAMES, Psd
from slotflow.tokencache import band_sigma

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

#: Bins of the running median (65 uHz in a year): a loud source fills some 40 of them with its
#: sidebands, and moves the median of the whole by 3%.
WINDOW_BINS: Final = 2049
ESTIMATED: Final = ("data", "running")  # with a level estimated from each band
STRIDE_BINS: Final = 64  # between the medians, which are interpolated
_MEDIAN: Final = float(np.log(2.0))  # of an exponential of mean 1: that of a bin's power


class WhiteBand(NamedTuple):
    """One band, ready for the search.

    Attributes:
        data: (3, K) complex64 A, E, T whitened by ``density``.
        density: (3, K) one-sided, 1/Hz; at the band's centre the model's.
        known: (2,) noise power of A and E over ``density`` where it is to be believed, None where
            it is to be estimated from the band.
        level_t: noise power of T over ``density``, which the search does not look at.
        measured: (2,) power of A and E with all that is in them, over the model's density.
        sigma: (2,) divisor of A and E at the band's centre, as the search takes it for signals.
        gap_fraction: share of the samples that lie in gaps.
        gain: of a signal in ``data``, below 1 where gaps took their share.
    """

    data: NDArray[np.complex64]
    density: Float
    known: Float | None
    level_t: float
    measured: Float
    sigma: Float
    gap_fraction: float = 0.0
    gain: float = 1.0


class WhiteBands(Protocol):
    """Where whitened bands are from."""

    def of(self, tile: Tile) -> WhiteBand:
        """Return a band."""

    def key(self, tile: Tile) -> tuple[int, ...]:
        """Return what a band's random numbers depend on, beside the seed and the slot."""


class Whitening:
    """Cuts and whitens the bands of one observation.

    Args:
        transformed: the spectrum.
        preset: of the model.
        psd: one of :data:`slotflow.results.PSD_NAMES`, or the path of a table of the total
            density (:func:`slotflow.noise_table.read_noise_table`), in the data's own TDI
            generation.
        path: the observation's, for messages.
        tdi2_arm: the arm length (m) by which TDI 2 data were brought to TDI 1.5; None where they
            were TDI 1.5.

    Raises:
        InputError: the table cannot be read.
    """

    def __init__(
        self,
        transformed: Spectrum,
        preset: Preset,
        psd: Psd,
        path: Path,
        tdi2_arm: float | None = None,
    ) -> None:
        self.transformed, self.preset, self.psd, self.path = transformed, preset, psd, path
        self.tdi2_arm = tdi2_arm
        self.table = None if psd in PSD_NAMES else np.array(read_noise_table(psd))

    def of(self, tile: Tile) -> WhiteBand:
        """Return the band of a tile; raises as :meth:`band`."""
        return self.band(tile.first_bin)

    def key(self, tile: Tile) -> tuple[int, ...]:
        """Return the band's first bin."""
        return (tile.first_bin,)

    def band(self, first_bin: int) -> WhiteBand:
        """Return the band from that bin on.

        Raises:
            InputError: a channel without noise or with numbers too large, or a frequency that the
                table does not hold.
        """
        ours, bins = self.preset.observation, self.preset.prior.bins
        duration = ours.duration
        frequency = (first_bin + np.arange(bins)) / duration
        model = standard_psd(frequency, ours)
        raw = self.transformed.band(first_bin, bins).data
        gaps = np.sqrt(self.transformed.window_power / window_power(ours.tukey))
        with np.errstate(over="ignore", invalid="ignore"):  # check_level says it better
            data = whiten(raw, model, duration, ours.tukey)
            if gaps != 1.0:
                data = (data / gaps).astype(np.complex64)
            measured = level(data[:2])
        check_level(self.path, measured, frequency)
        # Gaps take their share of a signal, too; a model that was trained on them knows
        sigma = band_sigma(ours, first_bin, bins) / (1.0 if ours.gaps.any else gaps)
        ratio = self._ratio(frequency, first_bin)
        centre = np.ones(3)
        if ratio is not None:
            centre = ratio[:, bins // 2]
            model = model * (ratio / centre[:, None])
            data = (data / np.sqrt(ratio / centre[:, None])).astype(np.complex64)
        missing = self.transformed.gap_fraction, float(gaps)
        if self.psd in ESTIMATED:
            return WhiteBand(data, model, None, float(level(data[2])), measured, sigma, *missing)
        return WhiteBand(data, model, centre[:2], float(centre[2]), measured, sigma, *missing)

    def _ratio(self, frequency: Float, first_bin: int) -> Float | None:
        """The wanted density over the model's, (3, K); None where it is the model's."""
        ours = self.preset.observation
        if self.psd == "running":
            knots, medians = self._running
            at = first_bin + np.arange(frequency.size)
            density = np.stack([np.exp(np.interp(at, knots, np.log(row))) for row in medians])
        elif self.table is not None:
            density = interpolated_density(frequency, self.table, self.psd)
            if self.tdi2_arm is not None:
                density = density / np.abs(tdi2_factor(frequency, self.tdi2_arm)) ** 2
        else:
            return None
        return np.asarray(density / standard_psd(frequency, ours))

    @cached_property
    def _running(self) -> tuple[Float, Float]:
        low, high = trained_range(self.preset.prior, self.transformed.duration)
        edges = low * self.transformed.duration, high * self.transformed.duration
        return running_density(
            self.transformed.data, self.transformed.duration, self.transformed.window_power,
            int(edges[0]) - self.preset.prior.bins, int(edges[1]) + self.preset.prior.bins,
        )  # fmt: skip


def reach(preset: Preset, psd: Psd, top: float, nyquist: float) -> float:
    """Return up to which frequency (Hz) the spectrum is needed.

    The running median takes what there is around the whole trained range, so that it does not
    depend on the bands that are read.

    Args:
        preset: of the model.
        psd: as for :class:`Whitening`.
        top: highest frequency of the bands that are read, Hz.
        nyquist: of the data, Hz.
    """
    if psd != "running":
        return top
    duration = preset.observation.duration
    highest = trained_range(preset.prior, duration)[1]
    wanted = highest + (preset.prior.bins + 0.5 * WINDOW_BINS) / duration
    return max(top, min(wanted, nyquist))


def running_density(
    data: Complex, duration: float, power: float, low: int, high: int
) -> tuple[Float, Float]:
    """Return the density by a running median over bins, in which lines hardly count.

    The median over ``WINDOW_BINS`` bins (fewer at the ends of the spectrum), divided by that of
    an exponential distribution, ln 2; every ``STRIDE_BINS`` bins, at places that do not depend
    on ``low`` and ``high``.

    Args:
        data: (channels, bins) spectrum from zero frequency.
        duration: observation time T, s.
        power: mean square of the window.
        low, high: the bins between which it is needed.

    Returns:
        ``(knots, density)``: (n,) bins and (channels, n) one-sided density, 1/Hz.
    """
    half = WINDOW_BINS // 2
    knots = np.arange(max(low // STRIDE_BINS, 1), high // STRIDE_BINS + 2) * STRIDE_BINS
    knots = knots[knots < data.shape[1]]
    medians = np.empty((len(data), knots.size))
    for column, knot in enumerate(knots.tolist()):
        part = data[:, max(knot - half, 1) : knot + half + 1]
        medians[:, column] = np.median(np.abs(part) ** 2, axis=1)
    return knots.astype(np.float64), medians * (2.0 / (duration * power * _MEDIAN))


def check_psd(psd: Psd) -> None:
    """Refuse what is neither a known word nor a file.

    Raises:
        InputError: naming the choices.
    """
    if psd not in PSD_NAMES and not Path(psd).is_file():
        words = ", ".join(PSD_NAMES)
        raise InputError(f"psd: expected {words} or the file of a table; got {psd!r}")


def whitening_notes(psd: Psd) -> tuple[str, ...]:
    """Return what the user should know of a density of their own."""
    if psd in PSD_NAMES:
        return ()
    return (
        f"psd {psd}: the noise level was taken from the table; the model was trained with a level"
        " estimated from each band",
    )
