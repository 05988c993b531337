"""Several models, each for frequencies of its own, read as one.

A family is an index, a JSON file beside the model files::

    {"format": 1, "models": [
        {"file": "model.safetensors", "sha256": "...", "fmax": 0.0021},
        {"file": "crowded.safetensors", "sha256": "..."}]}

in order of frequency. ``fmax`` (Hz) is where a model hands over to the next, a few bins inside the
trained ranges of both; the last has none. Where two models meet, what both report is merged as
what two neighbouring bands report.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from slotflow.atomic import written
from slotflow.bands import tiles, trained_range
from slotflow.checkpoint import Model, load_model
from slotflow.errors import InputError
from slotflow.manifest import file_sha256
from slotflow.merging import Candidate, Comparison, merge
from slotflow.posterior import needed_frequency, posterior
from slotflow.readers import Observation
from slotflow.results import (
    PSD_NAMES,
    BandView,
    PosteriorSettings,
    Result,
    SourcePosterior,
    TileRecord,
)
from slotflow.resume import Partial

FORMAT: Final = 1
JOIN_BINS: Final = 4.0  # on either side of a handover both models are asked

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Family:
    """Models by frequency.

    Attributes:
        models: at least one.
        names: of the models, each different.
        handovers: one fewer, Hz, increasing.
    """

    models: tuple[Model, ...]
    names: tuple[str, ...]
    handovers: tuple[float, ...]

    @classmethod
    def of(
        cls, models: Sequence[Model], names: Sequence[str], handovers: Sequence[float | None] = ()
    ) -> "Family":
        """Put models together, in order of frequency.

        Args:
            models: at least one.
            names: of the models.
            handovers: for each but the last, Hz; None, and what is not given, is the middle of
                where both are trained.

        Raises:
            InputError: naming the model: trained on another observation, frequencies between two
                models that none is trained on, or a handover outside what both are trained on.
        """
        if not models or len(models) != len(names):
            raise ValueError(f"expected models and as many names; got {len(models)}, {len(names)}")
        places = list(range(len(models) - 1))
        given = [handovers[i] if i < len(handovers) else None for i in places]
        found = [_handover(models[i : i + 2], names[i : i + 2], given[i]) for i in places]
        for low, high, name in zip(found, found[1:], names[1:], strict=False):
            if not low < high:
                raise InputError(f"{name}: hands over at {high:g} Hz, where it begins or below")
        return cls(tuple(models), tuple(names), tuple(found))

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        """The frequencies (Hz) that each model answers for, without gaps or overlaps."""
        low, high = self.trained
        edges = (low, *self.handovers, high)
        return tuple(itertools.pairwise(edges))

    @property
    def trained(self) -> tuple[float, float]:
        """Lowest and highest frequency, Hz."""
        return _trained(self.models[0])[0], _trained(self.models[-1])[1]


def _trained(model: Model) -> tuple[float, float]:
    return trained_range(model.preset.prior, model.preset.observation.duration)


def _handover(models: Sequence[Model], names: Sequence[str], given: float | None) -> float:
    """Return the frequency (Hz) at which the first of two models hands over, checked."""
    left, right = models
    if left.preset.observation != right.preset.observation:
        raise InputError(f"{names[1]}: trained on another observation than {names[0]}")
    margin = JOIN_BINS / left.preset.observation.duration
    low, high = _trained(right)[0] + margin, _trained(left)[1] - margin
    if low > high:
        raise InputError(
            f"{names[1]}: trained from {_trained(right)[0]:.6e} Hz, but {names[0]} only up to"
            f" {_trained(left)[1]:.6e} Hz: they must overlap by {2 * JOIN_BINS:g} bins"
        )
    if given is None:
        return 0.5 * (low + high)
    if not low <= given <= high:
        raise InputError(
            f"{names[0]}: fmax {given!r} Hz is not between {low:.6e} and {high:.6e} Hz, where"
            f" {names[1]} is trained, too"
        )
    return given


def write_family(path: Path, files: Sequence[Path], handovers: Sequence[float | None] = ()) -> None:
    """Write the index of model files, which must lie beside it.

    Args:
        path: of the index.
        files: the models, in order of frequency.
        handovers: as for :meth:`Family.of`.

    Raises:
        InputError: as :meth:`Family.of` and :func:`slotflow.checkpoint.load_model`, or a file that
            lies elsewhere.
    """
    for file in files:
        if file.resolve().parent != path.resolve().parent:
            raise InputError(f"{file}: must lie beside {path}")
    family = Family.of([load_model(file) for file in files], [f.name for f in files], handovers)
    rows: list[dict[str, Any]] = [{"file": f.name, "sha256": file_sha256(f)} for f in files]
    for row, handover in zip(rows, family.handovers, strict=False):
        row["fmax"] = handover
    with written(path) as temporary:
        temporary.write_text(json.dumps({"format": FORMAT, "models": rows}, indent=1), "utf-8")


def read_family(path: Path) -> Family:
    """Read an index and its models.

    Raises:
        InputError: naming the file: missing, not such an index, a model that is not the one it
            lists, or models that do not go together.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] != FORMAT:
            raise InputError(f"{path}: format: expected {FORMAT}; got {content['format']!r:.80}")
        rows = [
            (str(row["file"]), str(row["sha256"]), row.get("fmax")) for row in content["models"]
        ]
        handovers = [None if fmax is None else float(fmax) for _, _, fmax in rows]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not an index of models: {error!r:.200}") from error
    if not rows:
        raise InputError(f"{path}: models: none")
    for name, sha256, _ in rows:
        if Path(name).name != name:  # a path could lead out of the folder
            raise InputError(f"{path}: models: expected the name of a file beside it; got {name!r}")
        if not (path.parent / name).is_file():
            raise InputError(f"{path.parent / name}: no such model file")
        if file_sha256(path.parent / name) != sha256:
            raise InputError(f"{path.parent / name}: not the file that {path.name} lists")
    models = [load_model(path.parent / name) for name, _, _ in rows]
    return Family.of(models, [name for name, _, _ in rows], handovers[:-1])


def family_posterior(
    observation: Observation,
    family: Family,
    *,
    fmin: float | None = None,
    fmax: float | None = None,
    partial: Callable[[str], Partial] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Find the sources of an observation by the models that are for their frequencies.

    Args:
        observation: the data.
        family: the models.
        fmin, fmax: Hz; lowest and highest trained where None.
        partial: gives for a model's name where its batches that are done are kept.
        progress: called with (bands done, bands in all).
        **options: the others of :func:`slotflow.posterior.posterior`.

    Raises:
        InputError, NonFiniteError: as :func:`slotflow.posterior.posterior`.
    """
    lowest, highest = family.trained
    low, high = lowest if fmin is None else fmin, highest if fmax is None else fmax
    if not (lowest <= low < high <= highest):
        raise InputError(
            f"fmin {low!r} and fmax {high!r} Hz: expected within the trained range,"
            f" {lowest:.6e} to {highest:.6e} Hz, and in order"
        )
    asked = [i for i, (a, b) in enumerate(family.ranges) if a < high and b > low]
    shares = [_share(family, i, low, high) for i in asked]
    presets = [family.models[i].preset for i in asked]
    plans = [tiles(*share, preset.prior, preset.observation.duration)
             for share, preset in zip(shares, presets, strict=True)]  # fmt: skip
    for preset, plan in zip(presets, plans, strict=True):  # before any of them takes minutes
        needed_frequency(observation, preset, plan, options.get("psd", PSD_NAMES[0]))
    totals = [len(plan) for plan in plans]
    results: list[Result] = []
    for number, (i, share) in enumerate(zip(asked, shares, strict=True)):
        before = sum(totals[:number])
        kept = None if partial is None else partial(family.names[i])
        found = posterior(
            observation, family.models[i], fmin=share[0], fmax=share[1],
            partial=kept, progress=_shifted(progress, before, sum(totals)), **options,
        )  # fmt: skip
        sources = tuple(replace(source, model=i) for source in found.sources)
        results.append(replace(found, sources=sources))
    handovers = [family.handovers[i] for i in asked[:-1]]
    return joined(results, handovers, Comparison(family.models[asked[-1]].grid), (low, high))


def _share(family: Family, i: int, low: float, high: float) -> tuple[float, float]:
    """Return the frequencies that a model is asked for: its own, and a little beyond."""
    margin = JOIN_BINS / family.models[i].preset.observation.duration
    own_low, own_high = family.ranges[i]
    first, last = i == 0, i == len(family.models) - 1
    return (
        max(low, own_low if first else own_low - margin),
        min(high, own_high if last else own_high + margin),
    )


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


def joined(
    results: Sequence[Result], handovers: Sequence[float], comparison: Comparison,
    asked: tuple[float, float],
) -> Result:  # fmt: skip
    """Put the results of models together, each source once.

    Args:
        results: in order of frequency, with sources up to ``JOIN_BINS`` beyond the handovers.
        handovers: one fewer, Hz.
        comparison: tells whether two reports are one source.
        asked: the frequencies that were asked for, Hz.
    """
    edges = [-np.inf, *handovers, np.inf]
    duration = results[0].observation.duration
    sources: list[SourcePosterior] = []
    records: list[TileRecord] = []
    rows = []
    most = max(result.q_k.shape[1] for result in results)
    for number, result in enumerate(results):
        low, high = edges[number], edges[number + 1]
        near = JOIN_BINS / duration
        sources += [s for s in result.sources if low + near <= s.f0 < high - near]
        for tile, q_k in zip(result.tiles, result.q_k, strict=True):
            cut = tile._replace(low=max(tile.low, low), high=min(tile.high, high))
            if cut.low < cut.high:
                records.append(cut)
                rows.append(np.pad(q_k, (0, most - q_k.size)))
    for number, handover in enumerate(handovers):
        sources += _across(results[number : number + 2], handover, comparison)
    chosen = sorted((s for s in sources if asked[0] <= s.f0 <= asked[1]), key=lambda s: s.f0)
    first = results[0]
    return replace(
        first,
        sources=tuple(chosen),
        tiles=tuple(records),
        settings=_settings(first.settings, asked),
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
        seconds=_summed([result.seconds for result in results]),
        q_k=np.stack(rows),
        views=_views(results, chosen),
        refinements=tuple(one for result in results for one in result.refinements),
    )


def _across(
    pair: Sequence[Result], handover: float, comparison: Comparison
) -> tuple[SourcePosterior, ...]:
    """Return the sources near a handover, each once, by the model that is for its frequency."""
    near = JOIN_BINS / pair[0].observation.duration
    candidates = [
        Candidate(source, side, (source.f0 >= handover) == bool(side))
        for side, result in enumerate(pair)
        for source in result.sources
        if handover - near <= source.f0 < handover + near
    ]
    return merge(candidates, comparison)


def _settings(settings: PosteriorSettings, asked: tuple[float, float]) -> PosteriorSettings:
    return replace(settings, fmin=asked[0], fmax=asked[1])


def _summed(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def _views(results: Sequence[Result], sources: Sequence[SourcePosterior]) -> dict[int, BandView]:
    """Return the bands of all models with their sources' numbers among all."""
    views: dict[int, BandView] = {}
    for result in results:
        own = {id(source) for source in result.sources}
        for first_bin, view in result.views.items():
            places = tuple(
                i for i, s in enumerate(sources) if id(s) in own and s.first_bin == first_bin
            )
            if first_bin not in views or places:
                views[first_bin] = replace(view, sources=places)
    return views
