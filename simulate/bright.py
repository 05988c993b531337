"""The bright sources of a band: how many, where, how loud (the training prior's laws)."""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from slotflow.config import Preset, PriorSettings
from slotflow.noise import model_psd, standard_psd
from slotflow.parameters import fdot_widening
from slotflow.settings import Table
from slotflow.simulate.population import draw_members

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

REFERENCE_AMPLITUDE: Final = 1e-22
BLOCK_STREAM: Final = 3  # of the random streams of slotflow.simulate.sample


def block_bin(preset: Preset, seed: int, group: int) -> int:
    """Return the Fourier bin of a group's block.

    A golden-ratio sequence from a random start: every stretch of groups covers the range of
    frequencies evenly; with ``prior.segments`` as densely as the tiles of an observation do.
    """
    start = np.random.default_rng([seed, 0, BLOCK_STREAM]).random()
    place = (start + group * (np.sqrt(5.0) - 1.0) / 2.0) % 1.0
    prior = preset.prior
    if prior.segments:
        edges = [prior.fmin, *(f for f, _ in prior.windows[1:] if prior.fmin < f < prior.fmax)]
        tiles = np.diff([*edges, prior.fmax]) / [prior.window(f) for f in edges]
        share = np.concatenate([[0.0], np.cumsum(tiles)])
        frequency = float(np.interp(place * share[-1], share, [*edges, prior.fmax]))
    else:
        frequency = prior.fmin + (prior.fmax - prior.fmin) * place
    return int(np.rint(frequency * preset.observation.duration))


def interpolated(table: Table, frequency: ArrayLike) -> Float:
    """Return a table's value at frequencies (Hz): linear in the logarithms, level beyond its ends.

    Args:
        table: rows of frequency (Hz) and value.
        frequency: Hz, any shape.
    """
    f, values = np.log(np.array(table).T)
    return np.asarray(np.exp(np.interp(np.log(frequency), f, values)))


def cut_poisson(rng: np.random.Generator, mean: float, most: int) -> int:
    """Draw from a Poisson law cut above ``most``."""
    k = np.arange(most + 1)
    log_p = k * np.log(mean) - gammaln(k + 1.0)
    cumulative = np.cumsum(np.exp(log_p - log_p.max()))
    place = rng.random() * cumulative[-1]
    return min(int(np.searchsorted(cumulative, place, side="right")), most)


def _draw_snr(rng: np.random.Generator, prior: PriorSettings, number: int) -> Float:
    """Draw SNRs between the prior's bounds by inverting their cumulative law."""
    low, high, u = prior.snr_min, prior.snr_max, rng.random(number)
    if prior.snr_law == "log_uniform":
        return np.asarray(low * (high / low) ** u)
    if prior.snr_law == "uniform":
        return np.asarray(low + (high - low) * u)
    return np.asarray((low**-3.0 + (high**-3.0 - low**-3.0) * u) ** (-1.0 / 3.0))


def _draw_sky(rng: np.random.Generator, preset: Preset, number: int) -> tuple[Float, Float]:
    if preset.prior.sky == "galactic":
        members = draw_members(rng, number, preset.population)
        return members.ra, members.dec
    return rng.uniform(0.0, 2.0 * np.pi, number), np.arcsin(rng.uniform(-1.0, 1.0, number))


def draw_bright(rng: np.random.Generator, bins: Float, preset: Preset) -> tuple[Float, Float]:
    """Draw sources at these places (bins): (S, 8) at reference amplitude, and their SNR."""
    number, prior, duration = len(bins), preset.prior, preset.observation.duration
    f0 = bins / duration
    fdot = rng.uniform(prior.fdot_t2_min, prior.fdot_t2_max, number) * fdot_widening(f0)
    fdot = fdot / duration**2
    sources = np.stack(
        [
            f0,
            fdot,
            np.full(number, REFERENCE_AMPLITUDE),
            *_draw_sky(rng, preset, number),
            rng.uniform(0.0, 0.5 * np.pi, number),
            np.arccos(rng.uniform(-1.0, 1.0, number)),
            rng.uniform(0.0, 2.0 * np.pi, number),
        ],
        axis=-1,
    )
    return sources, _draw_snr(rng, prior, number)


def response_snr(responses: Complex, firsts: NDArray[np.int64], level: Float, start: int) -> Float:
    """Return each response's SNR over all its bins: ``SNR^2 = 2 sum over A, E of |h_w|^2``.

    ``h_w`` is whitened to unit noise per bin, so ``SNR^2 = 4 / (T S mean w^2) sum |h|^2``: the
    window's share of signal and noise power cancels. It is that of data without gaps.

    Args:
        responses: (S, 2, n), A and E.
        firsts: (S,) first bins; all bins must lie in ``level``.
        level: (2, bins) the noise's standard deviation per bin, ``sqrt(S T / 2 mean w^2)``.
        start: the bin of its index 0.
    """
    bins = firsts[:, None] - start + np.arange(responses.shape[2])
    power = (np.abs(responses) ** 2 / (level[:, bins] ** 2).swapaxes(0, 1)).sum(axis=1)
    return np.asarray(np.sqrt(2.0 * power.sum(axis=1)))


def snr_psd(frequency: Float, preset: Preset) -> Float:
    """Return the density in TDI 1.5 against which SNRs are taken: (3, n), 1/Hz.

    Instrument and confusion, the latter by ``prior.confusion_share`` of its fit: the fit is of what
    stays for a pipeline that resolves less.

    Args:
        frequency: (n,) Hz.
        preset: its sections ``observation`` and ``prior`` are used.
    """
    total = standard_psd(frequency, preset.observation)
    if not preset.prior.confusion_share:
        return total
    model = model_psd(frequency, preset.observation)
    without = total * (model.instrument / model.total)
    return np.asarray(
        without + (total - without) * interpolated(preset.prior.confusion_share, frequency)
    )
