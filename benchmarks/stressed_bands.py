"""Bands of a training prior, changed one way after another (:mod:`stress`)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.bands import Tile, level
from slotflow.config import GapSettings, Preset
from slotflow.gaps import band_mask
from slotflow.labels import window_edges
from slotflow.noise import draw_noise, model_psd, standard_psd, window_power, window_samples
from slotflow.parameters import AMPLITUDE, F0
from slotflow.response import tdi2_factor
from slotflow.simulate.bright import draw_bright, response_snr, snr_psd
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.sample import simulate_group
from slotflow.simulate.waveforms import accumulate
from slotflow.store import Band
from slotflow.tokencache import band_sigma
from slotflow.waveform import response_ae
from slotflow.whitening import WhiteBand

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

SEED = 77  # not that of a training set
LOUD = 10.0  # SNR above which a source counts for recall
RESPONSE_BINS = 256
GAPS = GapSettings(planned_interval=14.0, planned_hours=7.0, random_rate=12.0)


class Stressed(NamedTuple):
    """A band: ``data`` (3, K) whitened; ``truths`` (n, 8) and ``snr`` (n,) of all its sources, 0
    for those that are no targets; what gaps left, as in :class:`slotflow.whitening.WhiteBand`."""

    data: Complex
    truths: Float
    snr: Float
    gap_fraction: float = 0.0
    gain: float = 1.0


class Base(NamedTuple):
    """A band as simulated: ``signal``, and ``noise`` with the foreground in it, (3, K) each."""

    first_bin: int
    signal: Complex
    noise: Complex
    truths: Float
    snr: Float

    def seen(self, noise: Float | float = 1.0) -> Complex:
        """Return the data with a factor on the noise."""
        return np.asarray(self.signal + self.noise * noise)


@dataclass(frozen=True)
class Maker:
    """Makes the stressed bands of one preset."""

    preset: Preset

    def base(self, band: Band, index: int, mask: Float | None = None) -> Base:
        """Return a simulated band with noise of its own."""
        settings, bins = self.preset.observation, self.preset.prior.bins
        frequency = (band.first_bin + np.arange(bins)) / settings.duration
        psd = model_psd(frequency, settings)
        rng = np.random.default_rng([SEED, index, 1])
        noise = draw_noise(rng, psd.instrument / psd.total, settings.tukey, mask)
        count, outside = band.count, np.isfinite(band.outside[:, F0])
        truths = np.concatenate([band.sources[:count], band.outside[outside]])
        snr = np.concatenate([band.snr[:count], np.zeros(int(outside.sum()))])
        return Base(
            band.first_bin, band.signal.astype(np.complex128),
            band.foreground.astype(np.complex128) + noise, truths, snr,
        )  # fmt: skip

    def window(self, base: Base) -> tuple[float, float]:
        """Return the window of interest's edges in bins from the band's first."""
        return window_edges(base.first_bin, self.preset.prior, self.preset.observation.duration)

    def sources(self, rng: np.random.Generator, base: Base, places: Float) -> Float:
        """Draw sources at these bins of the band: (n, 8), at a reference amplitude."""
        return draw_bright(rng, base.first_bin + places, self.preset)[0]

    def with_sources(self, base: Base, sources: Float, snr: Float, target: bool = True) -> Base:
        """Add sources, scaled to these SNRs."""
        settings, bins = self.preset.observation, self.preset.prior.bins
        per_bin = 0.5 * settings.duration * window_power(settings.tukey)
        responses, firsts = response_ae(sources, response_grid(settings, RESPONSE_BINS))
        start = int(firsts.min())
        f = (start + np.arange(int(firsts.max()) - start + RESPONSE_BINS)) / settings.duration
        noise = np.sqrt(snr_psd(f, self.preset)[:2] * per_bin)
        factor = snr / response_snr(responses, firsts, noise, start)
        scaled = sources.copy()
        scaled[:, AMPLITUDE] *= factor
        own = (base.first_bin + np.arange(bins)) / settings.duration
        more = accumulate(responses * factor[:, None, None], firsts, base.first_bin, bins)
        signal = base.signal.copy()
        signal[:2] += more / np.sqrt(standard_psd(own, settings)[:2] * per_bin)
        truths = np.concatenate([base.truths, scaled])
        return base._replace(
            signal=signal, truths=truths,
            snr=np.concatenate([base.snr, snr if target else np.zeros(len(snr))]),
        )  # fmt: skip


Stress = Callable[[Maker, Base, np.random.Generator], Stressed]


def plain(maker: Maker, base: Base, rng: np.random.Generator) -> Stressed:
    """The training distribution itself."""
    return Stressed(base.seen(), base.truths, base.snr)


def noise_times(factor: float) -> Stress:
    """All noise, the foreground's too, times a factor in amplitude."""
    return lambda maker, base, rng: Stressed(
        base.seen(noise=factor), base.truths, base.snr / factor
    )


def tilted(maker: Maker, base: Base, rng: np.random.Generator) -> Stressed:
    """The noise's power rises (or falls) fourfold along the band."""
    bins = base.noise.shape[1]
    sign = rng.choice([-1.0, 1.0])
    power = np.exp(sign * math.log(4.0) * (np.arange(bins) / bins - 0.5))
    return _shaped(maker, base, power)


def bumped(maker: Maker, base: Base, rng: np.random.Generator) -> Stressed:
    """A bump of four times the noise's power, a tenth of the band wide, somewhere in the window."""
    bins = base.noise.shape[1]
    low, high = maker.window(base)
    power = 1.0 + 3.0 * np.exp(
        -0.5 * ((np.arange(bins) - rng.uniform(low, high)) / (0.05 * bins)) ** 2
    )
    return _shaped(maker, base, power)


def _shaped(maker: Maker, base: Base, power: Float) -> Stressed:
    """Multiply the noise's power along the band; SNRs are against what is there."""
    bins = base.truths[:, F0] * maker.preset.observation.duration - base.first_bin
    local = np.interp(bins, np.arange(len(power)), power)
    return Stressed(base.seen(noise=np.sqrt(power)), base.truths, base.snr / np.sqrt(local))


def glitch(snr: float) -> Stress:
    """A transient far shorter than the band's inverse width: level power, phases in line."""

    def stress(maker: Maker, base: Base, rng: np.random.Generator) -> Stressed:
        bins = base.noise.shape[1]
        when = rng.uniform(0.1, 0.9)
        direction = rng.standard_normal((2, 1)) + 0.3j * rng.standard_normal((2, 1))
        wave = direction * np.exp(-2j * np.pi * (base.first_bin + np.arange(bins)) * when)
        wave *= snr / math.sqrt(2.0 * float((np.abs(wave) ** 2).sum()))
        data = base.seen()
        data[:2] += wave
        return Stressed(data, base.truths, base.snr)

    return stress


def leaking(maker: Maker, base: Base, rng: np.random.Generator) -> Stressed:
    """A source of SNR 1,000 beyond one end of the band, 5 to 40 bins away."""
    bins = base.noise.shape[1]
    away = rng.uniform(5.0, 40.0, 1)
    place = -away if rng.random() < 0.5 else bins + away
    loud = maker.with_sources(
        base, maker.sources(rng, base, place), np.array([1000.0]), target=False
    )
    return plain(maker, loud, rng)


def twice_as_many(maker: Maker, base: Base, rng: np.random.Generator) -> Stressed:
    """Twice as many targets as the model knows."""
    prior = maker.preset.prior
    more = 2 * prior.max_sources - int((base.snr > 0.0).sum())
    places = rng.uniform(*maker.window(base), more)
    sources = maker.sources(rng, base, places)
    snr = np.exp(rng.uniform(math.log(LOUD), math.log(prior.snr_max), more))
    return plain(maker, maker.with_sources(base, sources, snr), rng)


def very_loud(maker: Maker, base: Base, rng: np.random.Generator) -> Stressed:
    """One target more, of SNR 1,000."""
    place = rng.uniform(*maker.window(base), 1)
    sources = maker.sources(rng, base, place)
    return plain(maker, maker.with_sources(base, sources, np.array([1000.0])), rng)


def twins(maker: Maker, base: Base, rng: np.random.Generator) -> Stressed:
    """Two targets alike in all but the frequency, half a bin apart."""
    low, high = maker.window(base)
    sources = np.repeat(maker.sources(rng, base, rng.uniform(low, high - 1.0, 1)), 2, axis=0)
    sources[1, F0] += 0.5 / maker.preset.observation.duration
    snr = np.exp(rng.uniform(math.log(LOUD), math.log(maker.preset.prior.snr_max)))
    return plain(maker, maker.with_sources(base, sources, np.full(2, snr)), rng)


def taken_for(generation: str) -> Stress:
    """Data of the other TDI generation, taken for this one."""

    def stress(maker: Maker, base: Base, rng: np.random.Generator) -> Stressed:
        settings, bins = maker.preset.observation, base.noise.shape[1]
        f = (base.first_bin + np.arange(bins)) / settings.duration
        factor = tdi2_factor(f, settings.arm_length)
        factor = 1.0 / factor if generation == "2.0" else factor
        return Stressed(base.seen() * factor, base.truths, base.snr)

    return stress


STRESSES: dict[str, Stress] = {
    "none": plain,
    **{f"noise x {factor:g}": noise_times(factor) for factor in (0.5, 0.7, 1.5, 2.0, 3.0)},
    "noise tilted": tilted,
    "noise with a bump": bumped,
    "glitch, SNR 10": glitch(10.0),
    "glitch, SNR 50": glitch(50.0),
    "gaps": plain,  # which are in what it is made of
    "SNR 1,000 outside": leaking,
    "twice the sources": twice_as_many,
    "SNR 1,000": very_loud,
    "twins": twins,
    "TDI 1.5 as 2.0": taken_for("2.0"),
    "TDI 2.0 as 1.5": taken_for("1.5"),
}


class Given:
    """Bands in memory, as :class:`slotflow.inference.BandReader` takes them."""

    def __init__(self, preset: Preset, bands: Sequence[Stressed]) -> None:
        self.preset, self.bands = preset, bands

    def of(self, tile: Tile) -> WhiteBand:
        """Return a band."""
        settings, one = self.preset.observation, self.bands[tile.number]
        bins = one.data.shape[1]
        data = one.data.astype(np.complex64)
        frequency = (tile.first_bin + np.arange(bins)) / settings.duration
        measured = level(data)
        return WhiteBand(
            data, standard_psd(frequency, settings), None, float(measured[2]), measured[:2],
            band_sigma(settings, tile.first_bin, bins) / one.gain, one.gap_fraction, one.gain,
        )  # fmt: skip

    def key(self, tile: Tile) -> tuple[int, ...]:
        """Return first bin and number."""
        return tile.first_bin, tile.number


def made(maker: Maker, name: str, number: int) -> tuple[list[Tile], list[Stressed]]:
    """Return the bands of one stress."""
    preset = maker.preset
    if name == "gaps":
        observation = preset.observation.model_copy(update={"gaps": GAPS})
        preset = preset.model_copy(update={"observation": observation})
    settings, tiles, bands = preset.observation, [], []
    for index, band in enumerate(simulate_group(preset, SEED, range(number))):
        mask = band_mask(settings, SEED, index)
        base = maker.base(band, index, mask)
        rng = np.random.default_rng([SEED, index, 2])
        one = STRESSES[name](maker, base, rng)
        if mask is not None:
            window = window_samples(settings.tukey, mask.size)
            share = float(np.mean((window * mask) ** 2) / np.mean(window**2))
            one = one._replace(gap_fraction=float(np.mean(mask < 0.5)), gain=math.sqrt(share))
        bands.append(one)
        low, high = (band.first_bin + edge for edge in maker.window(base))
        tiles.append(Tile(band.first_bin, low / settings.duration, high / settings.duration, index))
    return tiles, bands
