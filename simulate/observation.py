"""One full observation as a time series of X, Y, Z, in the layout of LDC2 Sangria:
given sources, a Galaxy drawn from the population, and instrument noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.config import ObservationSettings
from slotflow.errors import InputError, OutputExistsError
from slotflow.noise import total_psd, window_power
from slotflow.parameters import F0
from slotflow.simulate.observation_file import ObservationContent, write_observation
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.population import draw_galaxy
from slotflow.simulate.series import (
    BATCH,
    noise_spectrum,
    response_ae,
    slow_samples,
    span,
    sum_responses,
    to_series,
)
from slotflow.simulate.sources import Catalogue, read_catalogue

__all__ = ["Catalogue", "GalaxySettings", "read_catalogue", "simulate_observation"]

Float = NDArray[np.float64]
Progress = Callable[[int, int], None]

GALAXY, NOISE = 1, 2  # streams of the random numbers
MIN_SAMPLES: Final = 256  # of a response, for given sources and for SNRs


@dataclass(frozen=True)
class GalaxySettings:
    """The Galactic population in an observation.

    Attributes:
        fmin: lowest frequency, Hz; the highest is the Nyquist frequency.
        rate_scale: factor on the number of binaries.
        truth_snr: members above this SNR (against instrument and confusion) are kept in the file.
    """

    fmin: float = 0.5e-3
    rate_scale: float = 1.0
    truth_snr: float = 1.0


class ObservationSummary(NamedTuple):
    """What was simulated: the file, binaries drawn from the population, sources kept as truth."""

    path: Path
    binaries: int
    kept: int


def simulate_observation(
    path: str | Path,
    settings: ObservationSettings,
    seed: int,
    sources: Float | None = None,
    names: Sequence[str] | None = None,
    *,
    galaxy: GalaxySettings | None = None,
    noise: bool = True,
    compact: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> ObservationSummary:
    """Simulate one observation and write it to an HDF5 file.

    The whole Galaxy above 0.5 mHz (7e5 binaries) takes about half a minute on one core.

    Args:
        path: the file to write; written under a temporary name and then renamed.
        settings: the observation.
        seed: of the Galaxy and the noise.
        sources: (S, 8) given sources, f0 and phi0 at ``settings.t0``.
        names: of the given sources.
        galaxy: the population to draw, none where None.
        noise: add instrument noise.
        compact: about five significant digits, compressed.
        force: overwrite an existing file.
        progress: called with (sources done, sources in all).

    Raises:
        InputError: samples not a multiple of 8, a source beyond the Nyquist frequency, or a file
            that cannot be written.
        OutputExistsError: the file exists and ``force`` is not given.
    """
    path = Path(path)
    _prepare(path, force)
    given = np.empty((0, 8)) if sources is None else np.asarray(sources, dtype=np.float64)
    labels = (
        tuple(names) if names is not None else tuple(f"source {i + 1}" for i in range(len(given)))
    )
    _check(settings, given, labels)
    members = np.empty((0, 8))
    if galaxy is not None:
        rng = np.random.default_rng([seed, 0, GALAXY])
        members = draw_galaxy(rng, galaxy.fmin, 0.5 / settings.dt, galaxy.rate_scale)
    total = len(given) + len(members)

    def report(done: int) -> None:
        if progress is not None:
            progress(done, total)

    spectrum, _ = sum_responses(given, settings, MIN_SAMPLES, report)
    field, energy = sum_responses(members, settings, 0, lambda done: report(len(given) + done))
    spectrum += field
    if noise:
        spectrum += noise_spectrum(np.random.default_rng([seed, 0, NOISE]), settings)
    kept = _loud(members, energy, settings, galaxy.truth_snr if galaxy is not None else np.inf)
    content = ObservationContent(
        settings=settings,
        seed=seed,
        xyz=to_series(spectrum, settings),
        given=given,
        given_names=labels,
        given_snr=source_snr(given, settings),
        members=members[kept],
        member_names=tuple(f"galaxy {i}" for i in kept),
        member_snr=source_snr(members[kept], settings),
        attributes={
            "galaxy_binaries": len(members),
            "galaxy_fmin": np.nan if galaxy is None else galaxy.fmin,
            "galaxy_rate_scale": 0.0 if galaxy is None else galaxy.rate_scale,
            "galaxy_truth_snr": np.nan if galaxy is None else galaxy.truth_snr,
            "instrument_noise": settings.noise if noise else "none",
        },
    )
    write_observation(path, content, compact=compact)
    return ObservationSummary(path, len(members), len(given) + len(kept))


def _prepare(path: Path, force: bool) -> None:
    """Find out before the long work whether the file can be written."""
    if path.exists() and not force:
        raise OutputExistsError(f"{path}: exists already")
    if path.is_dir():
        raise InputError(f"{path}: cannot be written (a directory)")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def _check(settings: ObservationSettings, sources: Float, names: Sequence[str]) -> None:
    if settings.samples % 8:
        raise InputError(f"samples {settings.samples}: a multiple of 8 expected")
    if sources.ndim != 2 or sources.shape[1] != 8 or len(names) != len(sources):
        raise ValueError(f"expected (S, 8) sources and S names; got {sources.shape}, {len(names)}")
    for name, f0 in zip(names, sources[:, F0].tolist(), strict=True):
        if not 0.0 < f0 < 0.49 / settings.dt:
            raise InputError(
                f"source {name!r}: f0 = {f0!r} Hz is outside what a time step of"
                f" {settings.dt:g} s holds (0 to {0.49 / settings.dt:.6g} Hz)"
            )


def source_snr(sources: Float, settings: ObservationSettings) -> Float:
    """Return each source's SNR in A and E against instrument and confusion: (S,).

    ``SNR^2 = 4 / (T mean w^2) sum |h|^2 / S``: twice the whitened power, as of a training band; the
    window takes its share (3%) of signal and noise alike.
    """
    snr = np.zeros(len(sources))
    scale = 4.0 / (settings.duration * window_power(settings.tukey))
    n = np.maximum(slow_samples(sources, settings.duration), MIN_SAMPLES)
    for size in np.unique(n):
        grid = response_grid(settings, int(size))
        group = np.flatnonzero(n == size)
        for begin in range(0, len(group), BATCH):
            rows = group[begin : begin + BATCH]
            response, first = response_ae(sources[rows], grid)
            bins = np.maximum(first[:, None] + np.arange(size), 1)
            psd = total_psd((bins / settings.duration).ravel(), model=settings.noise)[0]
            weighted = (np.abs(response) ** 2).sum(axis=1) / psd.reshape(bins.shape)
            snr[rows] = np.sqrt(scale * weighted.sum(axis=-1))
    return snr


def _loud(
    members: Float, energy: Float, settings: ObservationSettings, threshold: float
) -> NDArray[np.int64]:
    """Return the indices of the members above an SNR, by frequency.

    The energy on the longer span, which is never less than in the observation, leaves few of
    which the SNR is then computed.
    """
    if not len(members):
        return np.empty(0, dtype=np.int64)
    psd = total_psd(members[:, F0], model=settings.noise)[0]
    upper = np.sqrt(4.0 / span(settings).duration * energy / psd)
    candidates = np.flatnonzero(upper > 0.85 * threshold)  # the density's slope, the window
    chosen = candidates[source_snr(members[candidates], settings) > threshold]
    return np.asarray(chosen[np.argsort(members[chosen, F0], kind="stable")])
