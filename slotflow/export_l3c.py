"""Export in the layout of L3C submissions: HDF5, one structured data set a source."""

from pathlib import Path
from typing import Final

import h5py
import numpy as np
from numpy.typing import NDArray

from slotflow.atomic import written
from slotflow.config import PriorSettings
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, PHI0, PSI, RA
from slotflow.prior import log_prior
from slotflow.provenance import CONVENTIONS, Provenance, attributes, label, refuse_existing
from slotflow.results import Result, SourcePosterior

#: Fields of the parameters, and which of ours each one is.
FIELDS: Final = {
    "amplitude": AMPLITUDE,
    "frequency": F0,
    "frequency_dot": FDOT,
    "initial_phase": PHI0,
    "inclination": IOTA,
    "polarization": PSI,
    "right_ascension": RA,
    "declination": DEC,
}
DTYPE: Final = np.dtype([(name, "<f8") for name in (*FIELDS, "logprior", "loglikelihood")])
_LOGPRIOR: Final = (
    "ln density of one source's training prior, per strain, Hz, Hz/s and radians; NaN: not known"
    " in closed form"
)
_LOGLIKELIHOOD: Final = "NaN: not evaluated"


def structured(
    source: SourcePosterior, prior: PriorSettings | None, duration: float
) -> NDArray[np.void]:
    """Return a source's samples as :data:`DTYPE`: (n,).

    ``logprior`` is :func:`slotflow.prior.log_prior`; ``loglikelihood`` is NaN: none is evaluated.

    Args:
        source: the source.
        prior: the model's training prior, None where it is not known.
        duration: observation time T, s.
    """
    rows = np.empty(len(source.samples), DTYPE)
    for name, column in FIELDS.items():
        rows[name] = source.samples[:, column]
    rows["logprior"] = log_prior(source.samples, source.first_bin, prior, duration)
    rows["loglikelihood"] = np.nan
    return rows


def export_l3c(
    result: Result, provenance: Provenance, folder: Path, stem: str, *, force: bool = False
) -> list[Path]:
    """Write ``<stem>.l3c.h5``: a data set a source, named as by :func:`slotflow.provenance.label`.

    What made the file is in its attributes; each data set has ``probability``, ``snr``,
    ``first_bin`` and ``slot`` in its own.

    Args:
        result: what to write.
        provenance: what made it.
        folder: of the file; it exists.
        stem: of the file's name.
        force: replace a file that is there.

    Returns:
        The file's path.

    Raises:
        InputError: the file cannot be written.
        OutputExistsError: the file is there, and not ``force``.
    """
    path = folder / f"{stem}.l3c.h5"
    refuse_existing(path, force)
    duration = result.observation.duration
    content = attributes(result, provenance, CONVENTIONS.replace("phi0", "initial_phase"))
    content |= {"logprior": _LOGPRIOR, "loglikelihood": _LOGLIKELIHOOD}
    with written(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update(content)
        for number, source in enumerate(result.sources):
            rows = structured(source, provenance.prior_of(source.model), duration)
            data = file.create_dataset(label(number, source.f0), data=rows)
            for name in ("probability", "snr", "first_bin", "slot"):
                data.attrs[name] = getattr(source, name)
    return [path]
