"""What of a band is compared with the training distribution: a few kinds of vectors.

Of the noise: ``level``, of A and E; of what clear components leave of the band, ``tilt`` and
``shape``, its power along frequency, and ``time``, along the observation (a fit to many faint
components takes an excess of noise with it, so these are left in); ``peaks``, the largest values
of what all components leave, and the band's ends. Of what was found: ``number``, how many
components there are; ``claims``, how many of them the slots take for sources; ``loudness``;
``components``, the tokens that the network reads, one each; ``slots``, the context of each slot
that is likely to hold a source. Nothing depends on the components' order.
"""

from typing import Final, NamedTuple

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from slotflow.config import ModelSettings, PriorSettings
from slotflow.response import Complex, Float, ResponseGrid
from slotflow.tokens import TOKEN_WIDTH, BandTokens
from slotflow.waveform import response_ae

Bool = NDArray[np.bool_]

#: Part of every score that is kept: change it with what the vectors are.
VERSION: Final = 1
KINDS: Final = (
    "level", "tilt", "shape", "time", "peaks", "number", "claims", "loudness", "components",
    "slots",
)  # fmt: skip
KNOTS: Final = 5  # of the frequencies between which a mean is interpolated
CONDITIONS: Final = KNOTS + 1
PIECES: Final = 8  # of the band, and of the observation, whose power is told
ENDS: Final = 16  # part of the band at either end, where sources beyond it are felt
END_BINS: Final = 6  # whose power is told by itself
CLEAR: Final = 60.0  # 2F of a component that is no noise
LIKELY: Final = 0.5  # probability above which a slot's context is looked at
_WIDTHS: Final = {"level": 2, "tilt": 2, "shape": PIECES, "time": PIECES, "peaks": 5, "number": 3,
                  "claims": 3, "loudness": 2, "components": TOKEN_WIDTH}  # fmt: skip
_TINY: Final = 1e-12
_X: Final = np.linspace(-1.0, 1.0, PIECES)
_MODES: Final = np.stack([_X, _X**2 - np.mean(_X**2)], axis=-1)  # a straight rise, and a bend


class BandVectors(NamedTuple):
    """One band: ``conditions`` (CONDITIONS,), and of each kind ``vectors`` (n, width)."""

    conditions: Float
    vectors: dict[str, Float]


class Content(NamedTuple):
    """What a search made of a band: ``components`` (C,), the noise's ``level`` (2,), what the clear
    ones leave, ``coarse`` (2, K), and what all leave, ``left`` (2, K); the edges of its ``window``
    of interest, in bins from the first."""

    components: NDArray[np.void]
    level: Float
    coarse: Complex
    left: Complex
    window: tuple[float, float]


class Slots(NamedTuple):
    """What the network made of a band: ``probability`` (S,) that each slot holds a source, nothing
    for those that are never reported; ``context`` (S, W); ``component`` (C,) logits that each
    component stands for a source."""

    probability: Float
    context: Float
    component: Float


def widths(model: ModelSettings) -> dict[str, int]:
    """Return the width of each kind of vectors."""
    return {**_WIDTHS, "slots": model.context}


def conditions(frequency: float, window: float, prior: PriorSettings) -> Float:
    """Return what the means depend on: (CONDITIONS,).

    Weights of equally spaced frequencies of the trained range, between two of which the band's
    lies, and the share of the band that is its window.

    Args:
        frequency: of the band's centre, Hz.
        window: width of its window over that of the band.
        prior: of the model.
    """
    place = (KNOTS - 1) * (frequency - prior.fmin) / max(prior.fmax - prior.fmin, _TINY)
    place = min(max(place, 0.0), KNOTS - 1.0)
    weights = np.maximum(1.0 - np.abs(np.arange(KNOTS) - place), 0.0)
    return np.append(weights, window)


def content(
    data: NDArray[np.complexfloating], components: NDArray[np.void], level: Float, first_bin: int,
    sigma: Float, window: tuple[float, float], grid: ResponseGrid,
) -> Content:  # fmt: skip
    """Return what a search made of a band; arguments as of :func:`residual` and Content."""
    clear = 2.0 * components["f_statistic"] > CLEAR
    coarse = residual(data, components[clear], first_bin, sigma, grid)
    left = residual(coarse, components[~clear], first_bin, sigma, grid)
    return Content(components, level, coarse, left, window)


def residual(
    data: NDArray[np.complexfloating], components: NDArray[np.void], first_bin: int, sigma: Float,
    grid: ResponseGrid,
) -> Complex:  # fmt: skip
    """Return a whitened band less its components, A and E: (2, K).

    Args:
        data: (2 or 3, K) whitened A, E (, T).
        components: (C,) of :data:`slotflow.components.COMPONENT_DTYPE`.
        first_bin: Fourier bin of the band's first column.
        sigma: (2,) the whitening's divisor at the band's centre.
        grid: the observation.
    """
    left, bins = data[:2].astype(np.complex128), data.shape[1]
    if not len(components):
        return left
    sources = np.zeros((len(components), 8))
    sources[:, 0] = (components["bin"] + first_bin) / grid.duration
    sources[:, 1] = components["fdot_t2"] / grid.duration**2
    sources[:, 3], sources[:, 4] = components["ra"], components["dec"]
    coefficients = np.stack([components["plus"], components["cross"]], axis=-1)
    responses, firsts = response_ae(sources, grid, coefficients)
    for one, start in zip(responses / sigma[:, None], (firsts - first_bin).tolist(), strict=True):
        low, high = max(start, 0), min(start + one.shape[1], bins)
        if high > low:
            left[:, low:high] -= one[:, low - start : high - start]
    return left


def noise_vectors(coarse: Complex, left: Complex, level: Float) -> dict[str, Float]:
    """Return what the residual tells, one vector of each kind.

    Args:
        coarse: (2, K) of :func:`residual`, of the clear components.
        left: (2, K) of all of them.
        level: (2,) the noise's power in A and E over the density that whitens.
    """
    unit = np.stack([coarse, left]) / np.sqrt(level)[:, None]
    power = np.abs(unit) ** 2
    along_time = np.abs(np.fft.ifft(unit, axis=-1, norm="ortho")) ** 2
    both = power[1].sum(axis=0)
    ends = both[:END_BINS].mean(), both[-END_BINS:].mean()
    peaks = along_time[1].sum(axis=0).max(), both.max(), np.mean(both**2), *ends
    end = unit.shape[-1] // ENDS
    shape = _pieces(power[0, :, end : unit.shape[-1] - end])
    return {
        "level": _log(level),
        "tilt": shape @ _MODES,
        "shape": shape,
        "time": _pieces(along_time[0]),
        "peaks": _log(peaks),
    }


def _pieces(power: Float) -> Float:
    """Return ln of the mean of each piece: (2, n) -> (PIECES,)."""
    return _log([part.mean() for part in np.array_split(power, PIECES, axis=1)])


def _log(values: ArrayLike) -> Float:
    return np.asarray(np.log(np.maximum(values, _TINY)))


def content_vectors(
    components: NDArray[np.void], window: tuple[float, float], slots: Slots
) -> dict[str, Float]:
    """Return how much the band holds, one vector of each kind.

    Args:
        components: (C,).
        window: edges of the window of interest, in bins from the band's first.
        slots: of the network.
    """
    height = 2.0 * components["f_statistic"]
    inside = (components["bin"] >= window[0]) & (components["bin"] <= window[1])
    stands = scipy.special.expit(slots.component)
    held = slots.probability.sum()
    number = len(components), (height > CLEAR).sum(), (height[inside] > CLEAR).sum()
    claims = held, stands[inside].sum() - held, stands[~inside].sum()
    loudness = _log([max(height.max(initial=1.0), 1.0), 1.0 + height.sum()])
    return {
        "number": np.array(number, dtype=np.float64), "claims": np.array(claims, dtype=np.float64),
        "loudness": loudness,
    }  # fmt: skip


def band_vectors(
    tokens: BandTokens, content: Content, slots: Slots, frequency: float, prior: PriorSettings
) -> BandVectors:
    """Return the vectors of a band.

    Args:
        tokens: as the network reads them.
        content: that they are of.
        slots: what the network made of it.
        frequency: of the band's centre, Hz.
        prior: of the model.
    """
    bins, window = content.left.shape[1], content.window
    likely = slots.probability > LIKELY
    vectors = noise_vectors(content.coarse, content.left, content.level)
    vectors |= content_vectors(content.components, window, slots)
    return BandVectors(
        conditions(frequency, (window[1] - window[0]) / bins, prior),
        {name: vectors[name][None] for name in vectors} | {
            "components": tokens.features[tokens.valid].astype(np.float64),
            "slots": slots.context[likely].astype(np.float64),
        },
    )  # fmt: skip
