"""Export for bilby: a result in JSON a source, written without bilby.

Such files are written and never read: what reads them runs what they name.
"""

import json
import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from slotflow import __version__
from slotflow.atomic import written
from slotflow.config import PriorSettings
from slotflow.errors import InputError
from slotflow.parameters import NAMES, PARAMETERS
from slotflow.prior import ranges
from slotflow.provenance import Provenance, attributes, label, refuse_existing
from slotflow.results import Result, SourcePosterior

_ISOTROPIC: Final = {"ra": "Uniform", "dec": "Cosine"}
_UNIFORM: Final = {"psi": "Uniform", "iota": "Sine", "phi0": "Uniform"}


def priors(source: SourcePosterior, prior: PriorSettings | None, duration: float) -> dict[str, str]:
    """Return each parameter's training prior in bilby's words.

    ``Prior``, which has no density, where there is none of that parameter alone: always of the
    amplitude, of f0 and fdot where the model's prior is not known, of the sky where it follows
    the Galaxy.

    Args:
        source: its band gives the range of f0.
        prior: the model's training prior, None where it is not known.
        duration: observation time T, s.
    """
    known = dict(_UNIFORM)
    if prior is not None and prior.sky == "isotropic":
        known |= _ISOTROPIC
    limits = {p.name: (p.low, p.high) for p in PARAMETERS}
    if prior is not None:
        f0, fdot = ranges(source.first_bin, prior, duration)
        limits["f0"] = f0
        known["f0"] = "Uniform"
        if fdot[0] < fdot[1]:
            limits["fdot"] = fdot
            known["fdot"] = "Uniform"
    words = {}
    for parameter in PARAMETERS:
        name, (low, high) = parameter.name, limits[parameter.name]
        parts = [f"name='{name}'"]
        parts += [f"unit='{parameter.unit}'"] if parameter.unit else []
        parts += [f"minimum={low!r}"] if low is not None else []
        parts += [f"maximum={high!r}"] if high is not None else []
        parts += ["boundary='periodic'"] if parameter.period is not None else []
        words[name] = f"{known.get(name, 'Prior')}({', '.join(parts)})"
    return words


def content(
    source: SourcePosterior, name: str, result: Result, provenance: Provenance
) -> dict[str, Any]:
    """Return a source's result by bilby's entries.

    The posterior holds our eight parameters, in our units and conventions, and ``log_q``.

    Args:
        source: of the result.
        name: the result's label.
        result: what it is from.
        provenance: what made it.
    """
    columns = {p: source.samples[:, i].tolist() for i, p in enumerate(NAMES)}
    units = {p.name: f" [{p.unit}]" if p.unit else "" for p in PARAMETERS}
    about = attributes(result, provenance)
    about |= {key: getattr(source, key) for key in ("probability", "snr", "first_bin", "slot")}
    return {
        "label": name,
        "outdir": ".",
        "sampler": "slotflow",
        "version": f"slotflow={__version__}",
        "search_parameter_keys": list(NAMES),
        "fixed_parameter_keys": [],
        "constraint_parameter_keys": [],
        "parameter_labels": [p.symbol for p in PARAMETERS],
        "parameter_labels_with_unit": [f"{p.symbol}{units[p.name]}" for p in PARAMETERS],
        "priors": priors(source, provenance.prior_of(source.model), result.observation.duration),
        "sampler_kwargs": {"samples": len(source.samples), "seed": result.settings.seed},
        "injection_parameters": None,
        "log_evidence": math.nan,
        "log_evidence_err": math.nan,
        "log_noise_evidence": math.nan,
        "log_bayes_factor": math.nan,
        "posterior": {"__dataframe__": True, "content": columns | {"log_q": source.log_q.tolist()}},
        "meta_data": about,
    }


def export_bilby(
    result: Result, provenance: Provenance, folder: Path, stem: str, *, force: bool = False
) -> list[Path]:
    """Write ``<stem>.bilby/<stem>_<label>_result.json``, one file a source.

    The label is that of :func:`slotflow.provenance.label`. The evidence, which is not known, is
    NaN as bilby writes it.

    Args:
        result: what to write.
        provenance: what made it.
        folder: of the folder of these files; it exists.
        stem: of the names.
        force: replace what is there; files of sources that the result does not have go.

    Returns:
        The files' paths, in the order of the sources.

    Raises:
        InputError: the files cannot be written.
        OutputExistsError: the folder holds results, and not ``force``.
    """
    place = folder / f"{stem}.bilby"
    try:
        place.mkdir(exist_ok=True)
        old = sorted(place.glob("*_result.json"))
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror}") from error
    if old:
        refuse_existing(old[0], force)
    paths = []
    for number, source in enumerate(result.sources):
        name = f"{stem}_{label(number, source.f0)}"
        path = place / f"{name}_result.json"
        with written(path) as temporary:
            text = json.dumps(content(source, name, result, provenance), default=_plain)
            temporary.write_text(text, "utf-8")
        paths.append(path)
    for path in old:
        if path not in paths:
            path.unlink(missing_ok=True)
    return paths


def _plain(value: Any) -> Any:
    """Return a number of NumPy's as one of Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
