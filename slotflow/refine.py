"""The network's posterior of a band, brought to the exact one.

The sources that a band reports in its window of interest are refined together: the target is the
training prior times the Gaussian likelihood of the whitened band at the noise level that the
component search found. What is outside the window is not a target and is taken off the data
first: sources that the network reports there by their posterior mean waveform, other loud
components by their best fit.

``importance`` weighs the network's draws; ``smc`` leads them to the target
(:mod:`slotflow.smc`, :mod:`slotflow.refine_moves`).
"""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from slotflow.checkpoint import Model
from slotflow.exact_foreground import galactic_noise
from slotflow.likelihood import BandLikelihood, instrument_sigma
from slotflow.parameters import other_image
from slotflow.refine_band import Cloud, Reference
from slotflow.refine_divergence import by_parameter
from slotflow.refine_evidence import one_more
from slotflow.refine_flow import FlowReference
from slotflow.refine_input import RefineBand, Slot, component_signal, place_of
from slotflow.refine_moves import SourceMoves
from slotflow.refine_noise import BandNoise, band_noise
from slotflow.refine_sample import Found, by_importance, by_smc, smc_settings
from slotflow.refine_space import BIN, Space
from slotflow.refined import Evidence, Refinement, RefineSettings
from slotflow.smc import run
from slotflow.templates import BankSet

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

_CPU: Final = torch.device("cpu")
#: Of responses, times SNR^2: parameters are off by 0.06 of their width at most.
MISMATCH: Final = 2e-3
OUTSIDE_HEIGHT: Final = 36.0  # 2F from which a component outside the window is taken off
#: What else than reported sources is not noise where a band's noise is measured, by 2F:
LOUD: Final = 200.0  # too loud for an unresolved source
CLEAR: Final = 60.0  # a part, perhaps, of a reported source that is
PART_BINS: Final = 3.0  # at most so far away
FEWER_PARTICLES: Final = 400  # with the least likely source left out
MISFIT_BINS: Final = 6  # on either side of a source, over which the residual is looked at
_LN2: Final = float(np.log(2.0))

#: When a refined posterior is not to be relied on.
MOST_MISFIT: Final = 2.0  # noise power around a source
MOST_AT_EDGE: Final = 0.1  # share of draws next to the window's edge


class Refined(NamedTuple):
    """A band's refined draws, and the record of how they came about.

    Attributes:
        samples: (S, n, 8) of the sources ``record.slots``, in the order of PARAMETERS; the n-th of
            all belong together.
        log_q: (S, n) the network's ln density at them, per unit volume of the scaled ranges.
        record: the rest.
    """

    samples: Float
    log_q: Float
    record: Refinement


class Prepared(NamedTuple):
    """A band as it is refined: coordinates, likelihood, its noise, and the sources."""

    space: Space
    likelihood: BandLikelihood
    noise: BandNoise
    slots: list[Slot]


class Refiner:
    """Refines bands of one model.

    Args:
        model: the trained model.
        banks: templates, by which places for one source more are found.
        settings: how.
        samples: draws a source.
        device: of the model's network.
    """

    def __init__(
        self, model: Model, banks: BankSet, settings: RefineSettings, samples: int,
        device: torch.device = _CPU,
    ) -> None:  # fmt: skip
        self.model, self.banks, self.settings, self.samples = model, banks, settings, samples
        self.device = device

    def __call__(self, band: RefineBand, rng: np.random.Generator) -> Refined:
        """Refine the sources of a band that lie in its window of interest.

        Args:
            band: the band.
            rng: all that is random comes from it.
        """
        started = time.perf_counter()
        if band.gap_fraction > 0.0:
            return self._refused(band, "the data have gaps, which the likelihood does not know")
        try:
            space, likelihood, noise, slots = self.prepared(band)
        except ValueError as error:
            return self._refused(band, str(error))
        references = [self._reference(slot, space) for slot in slots]
        problem = self._problem(likelihood, space, references, rng)
        found, warnings = None, []
        if slots:
            try:
                found = self._sample(problem, rng)
            except ValueError as error:
                warnings.append(f"not refined: {error}")
        if found is None:
            found = _unrefined(problem, slots, space, self.samples)
        warnings += found.warnings
        residuals = _residuals(problem, found.x)
        more, fewer, spent = Evidence(), Evidence(), found.evaluations
        if self.settings.evidence and not np.isnan(found.ln_z.value):
            bank = self.banks.at(band.first_bin + space.bins // 2)
            more, sure = one_more(problem, residuals, bank, rng)
            if not sure:
                warnings.append("ln B for one source more: its weights have a heavy tail")
            fewer, evaluations = self._fewer(likelihood, space, slots, found, rng)
            spent += evaluations
        return self._record(
            band, space, noise, slots, problem, found, residuals, more, fewer, tuple(warnings),
            spent, rng, started,
        )  # fmt: skip

    def _refused(self, band: RefineBand, reason: str) -> Refined:
        """Say why a band is left as it is."""
        nothing, nan = Evidence(), float("nan")
        record = Refinement(
            band.first_bin, self.settings.method, (), np.empty((0, 0, 8)), np.empty(0), nothing,
            nothing, nothing, nan, 0.0, nan, nan, (), nan, 0, np.empty((0, 8)), np.empty(0),
            (f"not refined: {reason}",), 0.0,
        )  # fmt: skip
        return Refined(np.empty((0, self.samples, 8)), np.empty((0, self.samples)), record)

    def prepared(self, band: RefineBand) -> Prepared:
        """Return the likelihood of the band less what lies outside its window, and the rest."""
        preset, duration = self.model.preset, self.model.preset.observation.duration
        space = Space(band.first_bin, duration, preset.prior)
        places = [place_of(slot, space) for slot in band.slots]
        low, high = space.low[BIN], space.high[BIN]
        inside = [low <= place <= high for place in places]
        arguments = band.first_bin, band.level, band.sigma, self.model.grid, preset.observation
        loudest = 2.0 * float(np.max(band.components["f_statistic"], initial=1.0))  # SNR^2
        mismatch = float(np.clip(MISMATCH / loudest, 1e-8, 1e-6))
        whole = BandLikelihood(band.data, *arguments, preset.prior, mismatch=mismatch)
        outside = self._outside(band, whole, inside, space)
        slots = [s for s, w in zip(band.slots, inside, strict=True) if w]
        noise = self._noise(band, whole, outside, slots, space)
        likelihood = BandLikelihood(
            whole.data - outside.sum(axis=0), band.first_bin, noise.level, *arguments[2:],
            preset.prior, mismatch, noise.modulation, noise.profile,
        )  # fmt: skip
        return Prepared(space, likelihood, noise, slots)

    def _outside(
        self, band: RefineBand, whole: BandLikelihood, inside: Sequence[bool], space: Space
    ) -> Complex:
        """Return the waveforms that are taken off as lying outside the window: (n, 2, K)."""
        low, high = space.low[BIN], space.high[BIN]
        taken = {slot.component for slot in band.slots}
        found = [
            whole.model(slot.samples[:256]).mean(axis=0)
            for slot, within in zip(band.slots, inside, strict=True)
            if not within
        ]
        found += [
            component_signal(whole, one, space)
            for number, one in enumerate(band.components)
            if not low <= one["bin"] <= high
            and number not in taken
            and 2.0 * one["f_statistic"] >= OUTSIDE_HEIGHT
        ]
        return np.array(found, dtype=np.complex128).reshape(-1, 2, whole.bins)

    def _noise(
        self, band: RefineBand, whole: BandLikelihood, outside: Complex, slots: Sequence[Slot],
        space: Space,
    ) -> BandNoise:  # fmt: skip
        """Return the noise of a band."""
        preset, observation = self.model.preset, self.model.preset.observation
        if self.settings.noise == "white" or not observation.foreground:
            return BandNoise(band.level)
        places, heights = band.components["bin"], 2.0 * band.components["f_statistic"]
        reported = [slot.component for slot in slots]
        near = np.abs(places[:, None] - places[reported]).min(axis=1, initial=np.inf) <= PART_BINS
        within = (places >= space.low[BIN]) & (places <= space.high[BIN])
        signal = within & ((near & (heights >= CLEAR)) | (heights >= LOUD))
        signal[reported] = True
        fits = [component_signal(whole, one, space) for one in band.components[signal]]
        fitted = np.array(fits, dtype=np.complex128).reshape(-1, 2, whole.bins)
        frequency = (band.first_bin + np.arange(whole.bins)) / whole.duration
        instrument = instrument_sigma(frequency, observation) ** 2 / whole.sigma**2
        galaxy = galactic_noise(
            self.model.grid, observation, preset.prior, preset.population,
            float(frequency[whole.bins // 2]),
        )  # fmt: skip
        signals = np.concatenate([outside, fitted])
        return band_noise(whole.data, signals, band.level, instrument, galaxy, observation.tukey)

    def _reference(self, slot: Slot, space: Space) -> Reference:
        context, reference = slot.context.to(self.device), slot.reference.to(self.device)
        return FlowReference(self.model.network, context, reference, space)

    def _problem(
        self, likelihood: BandLikelihood, space: Space, references: Sequence[Reference],
        rng: np.random.Generator,
    ) -> SourceMoves:  # fmt: skip
        return SourceMoves(likelihood, space, references, rng)

    def _sample(self, problem: SourceMoves, rng: np.random.Generator) -> Found:
        if self.settings.method == "importance":
            return by_importance(problem, self.samples, rng)
        if self.settings.backend == "blackjax":
            from slotflow.refine_jax import by_hamiltonian  # imports JAX

            return by_hamiltonian(problem, self.samples, rng)
        return by_smc(problem, self.samples, self.settings.repeats, rng)

    def _fewer(
        self, likelihood: BandLikelihood, space: Space, slots: Sequence[Slot], found: Found,
        rng: np.random.Generator,
    ) -> tuple[Evidence, int]:  # fmt: skip
        """Return ln B of all sources to all but the least likely, and the evaluations."""
        if not slots:
            return Evidence(), 0
        least = min(range(len(slots)), key=lambda i: slots[i].probability)
        if len(slots) == 1:
            return found.ln_z, 0
        rest = [self._reference(s, space) for i, s in enumerate(slots) if i != least]
        problem = self._problem(likelihood, space, rest, rng)
        try:
            if self.settings.method == "importance":
                less = by_importance(problem, self.samples, rng)
                ln_z, spent = less.ln_z, less.evaluations
            else:
                one = run(problem, smc_settings(FEWER_PARTICLES), rng)
                ln_z, spent = Evidence(one.ln_z, one.ln_z_error), one.evaluations
        except ValueError:
            return Evidence(), 0
        error = float(np.hypot(ln_z.error, found.ln_z.error))
        return Evidence(found.ln_z.value - ln_z.value, error), spent

    def _record(
        self, band: RefineBand, space: Space, noise: BandNoise, slots: Sequence[Slot],
        problem: SourceMoves, found: Found, residuals: Complex, more: Evidence, fewer: Evidence,
        warnings: tuple[str, ...], evaluations: int, rng: np.random.Generator, started: float,
    ) -> Refined:  # fmt: skip
        number = len(slots)
        log_q = np.array([
            reference.log_density(found.x[:, s]) + space.log_unit - _LN2
            for s, reference in enumerate(problem.references)
        ]).reshape(number, len(found.x))  # fmt: skip
        samples = space.to_sources(found.x).transpose(1, 0, 2).reshape(number, len(found.x), 8)
        other = rng.random(samples.shape[:2]) < 0.5
        samples = np.where(other[..., None], other_image(samples), samples)
        divergence = np.array([
            by_parameter(space.from_sources(slot.samples), found.x[:, s], rng)
            for s, slot in enumerate(slots)
        ]).reshape(number, 8)  # fmt: skip
        misfit = _misfit(residuals, found.x)
        warnings += _position_warnings(found.x, space, misfit)
        log_posterior = found.log_target - found.ln_z.value + number * (space.log_unit - _LN2)
        before = np.array([slot.samples for slot in slots]).reshape(number, self.samples, 8)
        record = Refinement(
            band.first_bin, self.settings.method, tuple(slot.number for slot in slots), before,
            log_posterior, found.ln_z, more, fewer, found.efficiency, found.ess, found.pareto_k,
            found.largest, found.temperatures, found.acceptance, evaluations, divergence, misfit,
            warnings, time.perf_counter() - started, noise.share,
        )  # fmt: skip
        return Refined(samples, log_q, record)


def _unrefined(problem: SourceMoves, slots: Sequence[Slot], space: Space, samples: int) -> Found:
    """Return the network's own draws where there is nothing else, or no source at all."""
    nan = float("nan")
    x = np.zeros((samples, 0, 8))
    if slots:
        x = np.stack([space.from_sources(slot.samples[:samples]) for slot in slots], axis=1)
    value = Evidence() if slots else Evidence(0.0, 0.0)
    return Found(x, np.full(len(x), 0.0 if not slots else nan), value, nan, 0.0, nan, nan, (),
                  nan, 0, ())  # fmt: skip


def _residuals(problem: SourceMoves, x: Float) -> Complex:
    """Return the band less the sources of some draws: (n, 2, K)."""
    if not problem.number:
        return problem.data[None]
    some = x[:: max(1, len(x) // 200)]
    settled = problem.settle(Cloud(some, np.zeros(len(some)), np.zeros((len(some), 0, 0))), 1.0)
    assert settled.residual is not None
    return settled.residual


def _misfit(residuals: Complex, x: Float) -> Float:
    """Return the mean power of the residual around each source, by unit noise: (S,)."""
    power = (np.abs(residuals) ** 2).mean(axis=(0, 1))
    out = np.empty(x.shape[1])
    for s in range(x.shape[1]):
        centre = round(float(np.median(x[:, s, BIN])))
        low = max(centre - MISFIT_BINS, 0)
        out[s] = power[low : max(centre + MISFIT_BINS + 1, low + 1)].mean()
    return out


def _position_warnings(x: Float, space: Space, misfit: Float) -> tuple[str, ...]:
    """Say where draws lie at the window's edge, and where a source does not explain the data."""
    found = []
    for s in range(x.shape[1]):
        offset = np.minimum(x[:, s, BIN] - space.low[BIN], space.high[BIN] - x[:, s, BIN])
        f0 = (space.first_bin + float(np.median(x[:, s, BIN]))) / space.duration
        where = f"source at {1e3 * f0:.6f} mHz"
        if np.mean(offset < 0.05) > MOST_AT_EDGE:
            found.append(f"{where}: at the edge of the prior's window")
        if misfit[s] > MOST_MISFIT:
            found.append(f"{where}: {misfit[s]:.1f} times the noise's power is left around it")
    return tuple(found)
