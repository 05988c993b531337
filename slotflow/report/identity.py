"""Which model and which bands a report is of, and whether these go together."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slotflow.checkpoint import Model
from slotflow.config import first_difference
from slotflow.errors import InputError
from slotflow.manifest import file_sha256
from slotflow.report.record import DataIdentity, ModelIdentity
from slotflow.store import TrainingSet


def training_seeds(model: Model) -> tuple[int, ...]:
    """Return the seeds of the sets that a model was trained on, as its card says; may be empty."""
    seeds = model.card.get("seeds", {})
    found = seeds.get("training") if isinstance(seeds, dict) else None
    values = found if isinstance(found, list) else [found]
    return tuple(int(value) for value in values if isinstance(value, int))


def held_out_seed(seed: int, models: Sequence[Model]) -> int:
    """Return the seed, or the next one above it that no model was trained on."""
    taken = {used for model in models for used in training_seeds(model)}
    while seed in taken:
        seed += 1
    return seed


def model_identity(path: Path, model: Model, name: str) -> ModelIdentity:
    """Return who a model is; ``name`` tells it from the others of the report."""
    parameters = sum(p.numel() for p in model.network.parameters())
    return ModelIdentity(
        name, str(path), file_sha256(path), parameters, model.calibration.to_json(),
        training_seeds(model), model.preset.model_dump(mode="json"), dict(model.card),
    )  # fmt: skip


def names_of(paths: list[Path]) -> list[str]:
    """Return a short name for each model: its file's, its folder's too where that is not enough.

    A model given twice has a number behind its name.
    """
    short = [path.stem for path in paths]
    if len(set(short)) < len(short):
        short = [f"{path.absolute().parent.name}/{path.stem}" for path in paths]
    seen: dict[str, int] = {}
    names = []
    for name in short:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


def data_identity(data: TrainingSet, simulated: bool, loud_snr: float) -> DataIdentity:
    """Return what the bands are.

    Raises:
        InputError: there is no source in them.
    """
    manifest, shards = data.manifest, range(len(data.manifest.shards))
    first_bin, count, snr = (
        np.concatenate([data.column(shard, name) for shard in shards])
        for name in ("first_bin", "count", "snr")
    )
    if not count.any():
        raise InputError(f"{data.directory}: {len(data)} bands without a source: nothing to score")
    content = [manifest.seed, manifest.settings, [s.sha256 for s in manifest.shards]]
    text = json.dumps(content, sort_keys=True)
    centre = (first_bin + 0.5 * data.prior.bins) / data.observation.duration
    return DataIdentity(
        "simulated" if simulated else "folder", None if simulated else str(data.directory),
        data.seed, hashlib.sha256(text.encode()).hexdigest(), len(data),
        int((count == 0).sum()), int(count.sum()),
        int(np.sum(snr > loud_snr)), float(centre.min()), float(centre.max()),
        data.observation.model_dump(mode="json"), data.prior.model_dump(mode="json"),
    )  # fmt: skip


def check_fit(data: TrainingSet, model: Model, path: Path) -> tuple[str, ...]:
    """Find out whether a model can read a set; return what the reader should know of it.

    Raises:
        InputError: made for other observations, other bands, or more sources than it has slots.
    """
    preset = model.preset
    ours, theirs = (o.model_dump(mode="json") for o in (preset.observation, data.observation))
    for which in (ours, theirs):  # where a file lies changes nothing; its checksum would
        for name in ("orbit_file", "noise_file"):
            which.pop(name, None)
    if (differs := first_difference(theirs, ours)) is not None:
        name, old, new = differs
        raise InputError(
            f"{data.directory}: observation.{name}: made with {old!r}, the model {path} has {new!r}"
        )
    if data.prior.bins != preset.prior.bins:
        raise InputError(
            f"{data.directory}: prior.bins: {data.prior.bins}, the model {path} reads"
            f" {preset.prior.bins}"
        )
    if data.prior.max_sources > preset.model.slots:
        raise InputError(
            f"{data.directory}: prior.max_sources: {data.prior.max_sources}, the model {path} has"
            f" {preset.model.slots} slots"
        )
    differs = first_difference(
        data.prior.model_dump(mode="json"), preset.prior.model_dump(mode="json")
    )
    if differs is None:
        return ()
    name, old, new = differs
    return (
        f"the bands' prior is not the one it was trained with: {name} is {old}, was {new}:"
        " its posteriors cannot be calibrated for them",
    )


def check_unseen(data: TrainingSet, model: Model, path: Path) -> tuple[str, ...]:
    """Refuse bands that a model was trained on; return what the reader should know of it.

    Raises:
        InputError: the set has the seed of the model's training data.
    """
    seeds = training_seeds(model)
    if data.seed in seeds:
        raise InputError(
            f"{data.directory}: seed {data.seed} is that of the data that {path} was trained on:"
            " figures of these say nothing about other bands; give held-out ones, or"
            " --allow-training-data"
        )
    if not seeds:
        return ("its card does not say which seed its training data had: these may be the same",)
    return ()
