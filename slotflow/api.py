"""The library in Python: read a file, load a model, look at the posteriors.

Example:
    >>> import slotflow
    >>> observation = slotflow.read("input.h5")
    >>> result = slotflow.load_model().posterior(observation, fmin=1.9e-3, fmax=1.95e-3)
    >>> for source in result:
    ...     print(source.f0, source.median["ra"], source.interval(0.9)["ra"])
    >>> result.table()
    >>> result.plot_band().savefig("band.png")
    >>> result.write("results", exports=["glass"])
"""

import dataclasses
import hashlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotflow.api_results import Posterior, Source
from slotflow.data import INDEX, shipped
from slotflow.provenance import Provenance, with_checksums
from slotflow.readers import Observation, read_observation
from slotflow.results import PosteriorSettings

if TYPE_CHECKING:
    from slotflow.checkpoint import Model as Checkpoint
    from slotflow.family import Family
    from slotflow.results import Result

__all__ = ["Model", "Models", "Posterior", "Source", "load_model", "read"]


def read(path: str | Path, form: str | None = None) -> Observation:
    """Read and check an observation.

    Args:
        path: an HDF5 file of a layout that :func:`slotflow.readers.read_observation` knows.
        form: its layout; told from the content where None.

    Raises:
        InputError: the file cannot be used; the message says why.

    Example:
        >>> observation = slotflow.read("LDC2_sangria_training_v2.h5")
        >>> observation.dt, observation.duration, observation.generation
    """
    return read_observation(path, form)


def load_model(path: str | Path | None = None) -> "Model | Models":
    """Load a trained model, or several that share the frequencies among them.

    Args:
        path: of a model file, or of an index of models (``*.json``, :mod:`slotflow.family`); what
            ships where None.

    Raises:
        InputError: missing, or not a model of this version.

    Example:
        >>> slotflow.load_model().card["held_out"]
    """
    from slotflow.checkpoint import load_model as load
    from slotflow.manifest import file_sha256

    place = shipped(INDEX) if path is None else Path(path)
    if place.suffix == ".json":
        from slotflow.family import read_family

        return Models(read_family(place), place, file_sha256(place))
    return Model(load(place), place, file_sha256(place))


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A trained model.

    Attributes:
        checkpoint: settings, network and orbit.
        path: of its file.
        sha256: of its file.
    """

    checkpoint: "Checkpoint"
    path: Path
    sha256: str

    @property
    def card(self) -> dict[str, Any]:
        """What is known about it: training, data, validation figures."""
        return self.checkpoint.card

    def __repr__(self) -> str:
        prior = self.checkpoint.preset.prior
        return f"<slotflow model {self.path.name}, {prior.fmin:g} to {prior.fmax:g} Hz>"

    def posterior(self, observation: Observation, **options: Any) -> Posterior:
        """Find the sources of an observation and their posteriors.

        The bands are kept for the pictures (12 kB each); ``keep_bands=False`` does without.

        Args:
            observation: from :func:`read`.
            **options: those of :func:`slotflow.posterior.posterior`: ``fmin``, ``fmax``,
                ``samples``, ``seed``, ``psd``, ``min_probability``, ``refine``, ``progress``, ...

        Raises:
            InputError: data that the model cannot use, or options out of their range.
            TypeError: an option that does not exist.

        Example:
            >>> result = model.posterior(observation, fmin=1.9e-3, fmax=1.95e-3, seed=1)
        """
        from slotflow.posterior import posterior

        with _one_thread():
            result = posterior(observation, self.checkpoint, **({"keep_bands": True} | options))
        return _posterior(result, observation, self, (self.checkpoint,), options)


@dataclasses.dataclass(frozen=True, eq=False)
class Models:
    """Trained models, each for frequencies of its own.

    Attributes:
        family: the models, and which frequencies each is for.
        path: of their index.
        sha256: of their index, which has those of the models.
    """

    family: "Family"
    path: Path
    sha256: str

    @property
    def card(self) -> dict[str, Any]:
        """What is known about each, by the name of its file."""
        names, models = self.family.names, self.family.models
        return {name: model.card for name, model in zip(names, models, strict=True)}

    def __repr__(self) -> str:
        low, high = self.family.trained
        number = len(self.family.models)
        return f"<{number} slotflow models of {self.path.name}, {low:g} to {high:g} Hz>"

    def posterior(self, observation: Observation, **options: Any) -> Posterior:
        """Find the sources of an observation and their posteriors, as :meth:`Model.posterior`.

        Raises:
            InputError: data that the models cannot use, or options out of their range.
            TypeError: an option that does not exist.
        """
        from slotflow.family import family_posterior

        with _one_thread():
            result = family_posterior(observation, self.family, **({"keep_bands": True} | options))
        return _posterior(result, observation, self, self.family.models, options)


def _posterior(
    result: "Result", observation: Observation, model: "Model | Models",
    checkpoints: "tuple[Checkpoint, ...]", options: dict[str, Any],
) -> Posterior:  # fmt: skip
    """Return the result with what made it."""
    from slotflow.posterior import posterior

    requested = {
        name: _plain(options.get(name, parameter.default))
        for name, parameter in inspect.signature(posterior).parameters.items()
        if name in {field.name for field in dataclasses.fields(PosteriorSettings)}
    }
    if options.get("refine") is not None:
        requested["refine"] = _plain(options["refine"])
    given = "".join(f", {name}={requested[name]!r}" for name in requested if name in options)
    provenance = Provenance(
        str(observation.path), _input_sha256(observation), str(model.path), model.sha256,
        with_checksums(requested), f"model.posterior(observation{given})",
        tuple(one.preset.prior for one in checkpoints),
    )  # fmt: skip
    return Posterior(result, provenance, checkpoints[-1].grid)


def _plain(value: Any) -> Any:
    """Return a setting as JSON has it."""
    if isinstance(value, np.generic):
        return value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value) if isinstance(value, Path) else value


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread: its arrays are small, and sums come out the same everywhere."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _input_sha256(observation: Observation) -> str:
    """Checksum of the file, or of the series where there is no file."""
    from slotflow.manifest import file_sha256

    if observation.path.is_file():
        return file_sha256(observation.path)
    return hashlib.sha256(np.ascontiguousarray(observation.tdi).data).hexdigest()
