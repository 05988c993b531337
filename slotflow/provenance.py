"""What made a result: the same entries in every file that it is written to."""

import importlib.metadata
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from slotflow import __version__
from slotflow.config import PriorSettings
from slotflow.errors import OutputExistsError
from slotflow.manifest import file_sha256
from slotflow.results import PSD_NAMES, Result, TileRecord

SCHEMA: Final = 1
PACKAGES: Final = ("arviz-base", "astropy", "h5py", "numpy", "pandas", "torch", "xarray")

#: What f0, phi0 and the angles mean in all files that keep our own parameters.
CONVENTIONS: Final = (
    "ICRS; f0 and phi0 at t0 (s since 2035-01-01T00:00:00 TCB);"
    " phase 2 pi f0 t + pi fdot t^2 - phi0; psi over [0, pi), both images of"
    " (psi + pi/2, phi0 + pi)"
)


class Provenance(NamedTuple):
    """What made a result.

    ``requested`` are the settings as the user gave them (None: the default); together with
    the two checksums they say whether a result can stand for another run. ``priors`` are
    the models' training priors, for the formats that name one.
    """

    input: str
    input_sha256: str
    model: str
    model_sha256: str
    requested: Mapping[str, Any]
    command: str
    priors: tuple[PriorSettings, ...] = ()

    def prior_of(self, model: int) -> PriorSettings | None:
        """Return the training prior of one of the models, None where it is not known."""
        return self.priors[model] if model < len(self.priors) else None

    @property
    def identity(self) -> str:
        """Input, model, settings and what computes as one line of JSON."""
        content = {
            "slotflow": __version__,
            "input_sha256": self.input_sha256,
            "model_sha256": self.model_sha256,
            "settings": dict(self.requested),
        }
        return json.dumps(content, sort_keys=True)


def with_checksums(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that name a file, ``psd``, with its SHA-256 beside it: ``psd_sha256``."""
    psd = str(requested.get("psd", PSD_NAMES[0]))
    if psd in PSD_NAMES or not Path(psd).is_file():
        return dict(requested)
    return dict(requested) | {"psd_sha256": file_sha256(Path(psd))}


def attributes(
    result: Result, provenance: Provenance, conventions: str = CONVENTIONS
) -> dict[str, Any]:
    """Return what a file says about itself, in plain types: text and numbers.

    Args:
        result: what is written.
        provenance: what made it.
        conventions: of the file's columns.
    """
    versions = {"slotflow": __version__}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    scored = any(tile.outlying is not None for tile in result.tiles)
    return {
        "schema": SCHEMA,
        "software": "slotflow",
        "versions": json.dumps(versions),
        "identity": provenance.identity,
        "input": provenance.input,
        "input_sha256": provenance.input_sha256,
        "model": provenance.model,
        "model_sha256": provenance.model_sha256,
        "command": provenance.command,
        "seed": result.settings.seed,
        "settings": json.dumps(asdict(result.settings)),
        "observation": result.observation.model_dump_json(),
        "t0": result.t0,
        "seconds": json.dumps({name: round(value, 3) for name, value in result.seconds.items()}),
        "notes": json.dumps(result.notes),
        "conventions": conventions,
        **({"outlying": json.dumps(outlying_summary(result.tiles))} if scored else {}),
    }


def outlying_summary(tiles: Sequence[TileRecord]) -> dict[str, Any]:
    """Return how many bands have a score against the training distribution, and those outside it.

    ``outside`` has for each of these its ``first_bin``, ``low`` and ``high`` (Hz), ``score`` and
    ``p_value``.
    """
    outside = [
        {
            "first_bin": tile.first_bin, "low": tile.low, "high": tile.high,
            "score": round(tile.outlying or 0.0, 4), "p_value": round(tile.outlying_p or 0.0, 6),
        }
        for tile in tiles
        if tile.outside
    ]  # fmt: skip
    return {"bands": sum(tile.outlying is not None for tile in tiles), "outside": outside}


def read_outlying(text: str) -> dict[str, Any]:
    """Return what :func:`outlying_summary` gave, from the JSON in a file.

    Raises:
        ValueError: it is no such text.
    """
    try:
        content = json.loads(text)
        outside = [
            {name: float(one[name]) for name in ("first_bin", "low", "high", "score", "p_value")}
            for one in content["outside"]
        ]
        bands = int(content["bands"])
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a summary of bands: {error!r:.80}") from error
    if not all(math.isfinite(value) for one in outside for value in one.values()):
        raise ValueError("numbers that are not finite")
    return {"bands": bands, "outside": outside}


def difference(found: str, wanted: str) -> str:
    """Say in a few words in what two identities differ, '' where they are equal."""
    try:
        a, b = json.loads(found), json.loads(wanted)
        flat = [
            {k: v for k, v in one.items() if k != "settings"} | dict(one["settings"])
            for one in (a, b)
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "unknown settings"
    for name in sorted(flat[0].keys() | flat[1].keys()):
        old, new = flat[0].get(name), flat[1].get(name)
        if old != new:
            if name == "slotflow":
                return f"made by slotflow {old or 'of an unknown version'}, this is {new}"
            if name.endswith("sha256"):
                return f"another {name.removesuffix('_sha256')} (SHA-256 {str(old)[:12]})"
            return f"{name} {_text(old)}, now {_text(new)}"
    return ""


def _text(value: Any) -> str:
    if value is None:
        return "by default"
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def refuse_existing(path: Path, force: bool) -> None:
    """Refuse to write over a file, unless told to.

    Raises:
        OutputExistsError: it is there.
    """
    if not force and path.exists():
        raise OutputExistsError(f"{path}: exists already; give another folder, or force")


def label(number: int, f0: float) -> str:
    """Return the name of a source in the files of one result: ``00012_1940``.

    Args:
        number: its row in the table, from 0.
        f0: median frequency, Hz; whole microhertz are in the name.
    """
    return f"{number:05d}_{int(f0 * 1e6)}"
