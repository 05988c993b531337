"""One full observation as a time series of X, Y, Z: given sources, a Galaxy drawn from the
population, and instrument noise, in the layout of LDC2 Sangria or of Mojito L1."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.config import ObservationSettings, PopulationSettings
from slotflow.errors import InputError, OutputExistsError
from slotflow.gaps import GAP_STREAM, draw_gaps
from slotflow.noise import YEAR, model_psd, standard_psd, window_power
from slotflow.parameters import F0
from slotflow.simulate.inputs import pinned
from slotflow.simulate.mojito_file import write_mojito
from slotflow.simulate.observation_file import ObservationContent, write_observation
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.population import STANDARD, draw_galaxy
from slotflow.simulate.series import (
    BATCH,
    check_orbit_file,
    in_generation,
    noise_spectrum,
    slow_samples,
    span,
    sum_responses,
    to_series,
)
from slotflow.simulate.sources import Catalogue, read_catalogue
from slotflow.waveform import response_ae

__all__ = ["Catalogue", "GalaxySettings", "Layout", "read_catalogue", "simulate_observation"]

Float = NDArray[np.float64]
Layout = Literal["sangria", "mojito"]
Progress = Callable[[int, int], None]

GALAXY, NOISE = 1, 2  # streams of the random numbers; GAP_STREAM is the gaps'
MIN_SAMPLES: Final = 256  # of a response, for given sources and for SNRs
MARGIN: Final = 512  # bins around a source that its SNR can need
LONGEST: Final = 10.0 * YEAR  # s, and a day the shortest, of the confusion fit


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


class _Sky(NamedTuple):
    """The sources: given ones with their names, and members of the Galaxy, (S, 8) each."""

    given: Float
    names: tuple[str, ...]
    members: Float


def simulate_observation(
    path: str | Path,
    settings: ObservationSettings,
    seed: int,
    sources: Float | None = None,
    names: Sequence[str] | None = None,
    *,
    galaxy: GalaxySettings | None = None,
    population: PopulationSettings = STANDARD,
    noise: bool = True,
    layout: Layout = "sangria",
    compact: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> ObservationSummary:
    """Simulate one observation and write it to an HDF5 file.

    The noise has the settings' model density, or that of a noise table, outside whose range the
    density of its nearest row is taken. The table must cover the frequencies at which SNRs are
    computed. With ``foreground: false`` there is no Galaxy, and no confusion in the SNRs.

    Gaps are those of the settings and the seed; nothing is tapered. In the Sangria layout
    X, Y, Z are NaN inside them (as in LDC2 Spritz) and ``obs/gaps`` lists them; in the Mojito
    layout the series are NaN there too, and ``tdi_flags`` is 1.

    Args:
        path: the file to write; written under a temporary name and then renamed.
        settings: the observation; ``channels`` has no effect, the file holds all of them.
        seed: of the Galaxy, the noise and the gaps.
        sources: (S, 8) given sources, f0 and phi0 at ``settings.t0``.
        names: of the given sources.
        galaxy: the population to draw, none where None.
        population: who is in it.
        noise: add instrument noise.
        layout: ``"sangria"`` or ``"mojito"``; the latter holds TDI 2 alone, which it takes
            where the settings leave the generation open.
        compact: about five significant digits, compressed (Sangria layout only).
        force: overwrite an existing file.
        progress: called with (sources done, sources in all).

    Raises:
        InputError: samples not a multiple of 8, a source beyond the Nyquist frequency, an orbit
            file or noise table that does not reach, TDI 1.5 asked for in the Mojito layout, or
            a file that cannot be written.
        OutputExistsError: the file exists and ``force`` is not given.
    """
    path = Path(path)
    settings = _for_layout(settings, layout, compact)
    galaxy = galaxy if settings.foreground else None
    given = np.empty((0, 8)) if sources is None else np.asarray(sources, dtype=np.float64)
    labels = (
        tuple(names) if names is not None else tuple(f"source {i + 1}" for i in range(len(given)))
    )
    _prepare(path, force)
    _check(settings, given, labels)
    check_orbit_file(settings)
    settings = pinned(settings)
    _check_density(settings, given, galaxy)
    sky = _Sky(given, labels, _members(settings, seed, galaxy, population))
    xyz, energy = _series(settings, seed, sky, noise, progress)
    threshold = galaxy.truth_snr if galaxy is not None else np.inf
    kept = _loud(sky.members, energy, settings, threshold)
    content = ObservationContent(
        settings=settings,
        seed=seed,
        xyz=xyz,
        gaps=draw_gaps(
            np.random.default_rng([seed, 0, GAP_STREAM]), settings.gaps, settings.duration
        ),
        noise=noise,
        given=given,
        given_names=labels,
        given_snr=source_snr(given, settings),
        members=sky.members[kept],
        member_names=tuple(f"galaxy {i}" for i in kept),
        member_snr=source_snr(sky.members[kept], settings),
        attributes=_attributes(settings, galaxy, population, len(sky.members), noise),
    )
    if layout == "mojito":
        write_mojito(path, content)
    else:
        write_observation(path, content, compact=compact)
    return ObservationSummary(path, len(sky.members), len(given) + len(kept))


def _for_layout(
    settings: ObservationSettings, layout: Layout, compact: bool
) -> ObservationSettings:
    """Return the settings with the layout's own TDI generation, if they leave it open."""
    if layout == "sangria":
        return settings
    if layout != "mojito":
        raise InputError(f"layout: {layout!r}; 'sangria' or 'mojito' expected")
    if compact:
        raise InputError("layout 'mojito': compact has no effect: it is in double precision")
    if settings.tdi_generation == "1.5" and "tdi_generation" in settings.model_fields_set:
        raise InputError(
            "observation.tdi_generation: '1.5': the Mojito layout holds TDI 2: set it to '2.0', or"
            " leave it out"
        )
    return settings.model_copy(update={"tdi_generation": "2.0"})


def _members(
    settings: ObservationSettings, seed: int, galaxy: GalaxySettings | None,
    population: PopulationSettings,
) -> Float:  # fmt: skip
    if galaxy is None:
        return np.empty((0, 8))
    rng = np.random.default_rng([seed, 0, GALAXY])
    return draw_galaxy(rng, galaxy.fmin, 0.5 / settings.dt, galaxy.rate_scale, population)


def _series(
    settings: ObservationSettings, seed: int, sky: _Sky, noise: bool, progress: Progress | None
) -> tuple[Float, Float]:
    """Return X, Y, Z of the observation, (3, samples), and each member's energy on the span."""
    given = len(sky.given)
    total = given + len(sky.members)

    def report(done: int) -> None:
        if progress is not None:
            progress(done, total)

    spectrum, _ = sum_responses(sky.given, settings, MIN_SAMPLES, report)
    field, energy = sum_responses(sky.members, settings, 0, lambda done: report(given + done))
    spectrum = in_generation(spectrum + field, settings)
    if noise:
        spectrum += noise_spectrum(np.random.default_rng([seed, 0, NOISE]), settings)
    return to_series(spectrum, settings), energy


def _attributes(
    settings: ObservationSettings, galaxy: GalaxySettings | None, population: PopulationSettings,
    binaries: int, noise: bool,
) -> dict[str, float | int | str]:  # fmt: skip
    """Return how the sky was made."""
    return {
        "galaxy_binaries": binaries,
        "galaxy_fmin": np.nan if galaxy is None else galaxy.fmin,
        "galaxy_rate_scale": 0.0 if galaxy is None else galaxy.rate_scale,
        "galaxy_truth_snr": np.nan if galaxy is None else galaxy.truth_snr,
        "population": population.model_dump_json(),
        "instrument_noise": settings.noise if noise else "none",
    }


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
    if settings.foreground and not 86400.0 <= settings.duration <= LONGEST:
        raise InputError(
            f"observation: samples x dt = {settings.duration:g} s: the confusion fit covers 1 day"
            " to 10 years (or set observation.foreground to false)"
        )
    if sources.ndim != 2 or sources.shape[1] != 8 or len(names) != len(sources):
        raise ValueError(f"expected (S, 8) sources and S names; got {sources.shape}, {len(names)}")
    for name, f0 in zip(names, sources[:, F0].tolist(), strict=True):
        if not 0.0 < f0 < 0.49 / settings.dt:
            raise InputError(
                f"source {name!r}: f0 = {f0!r} Hz is outside what a time step of"
                f" {settings.dt:g} s holds (0 to {0.49 / settings.dt:.6g} Hz)"
            )


def _check_density(
    settings: ObservationSettings, given: Float, galaxy: GalaxySettings | None
) -> None:
    """Raise InputError for a noise table that SNRs would leave, before the long work."""
    nyquist = 0.5 / settings.dt
    edges = given[:, F0].tolist() + ([galaxy.fmin, nyquist] if galaxy is not None else [])
    if edges:
        margin = MARGIN / settings.duration
        low = max(min(edges) - margin, 1.0 / settings.duration)
        model_psd(np.array([low, min(max(edges) + margin, nyquist)]), settings)


def source_snr(sources: Float, settings: ObservationSettings) -> Float:
    """Return each source's SNR in A and E against instrument and confusion: (S,).

    ``SNR^2 = 4 / (T mean w^2) sum |h|^2 / S``: twice the whitened power, as of a training band; the
    window takes its share (3%) of signal and noise alike. The same in either TDI generation. Beyond
    the Nyquist frequency the density is taken at it.
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
            bins = np.clip(first[:, None] + np.arange(size), 1, settings.samples // 2)
            psd = standard_psd((bins / settings.duration).ravel(), settings)[0]
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
    psd = standard_psd(members[:, F0], settings)[0]
    upper = np.sqrt(4.0 / span(settings).duration * energy / psd)
    candidates = np.flatnonzero(upper > 0.85 * threshold)  # the density's slope, the window
    chosen = candidates[source_snr(members[candidates], settings) > threshold]
    return np.asarray(chosen[np.argsort(members[chosen, F0], kind="stable")])
