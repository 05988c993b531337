"""What a refinement found, as records: kept apart from what finds it, so that results are light."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.errors import InputError

Float = NDArray[np.float64]

Method = Literal["importance", "smc"]
LN_STRONG: Final = 5.0  # of a Bayes factor that is worth a note
WHITE_SHARE: Final = 0.3  # of unresolved binaries, as white noise may show by chance
METHODS: Final = ("importance", "smc")


@dataclass(frozen=True)
class RefineSettings:
    """How a posterior is refined.

    Attributes:
        method: ``"importance"`` or ``"smc"``.
        repeats: independent runs of SMC in a band, by whose scatter ln Z is judged.
        evidence: whether one source more and one less are looked at, too.
        noise: ``"foreground"``: unresolved binaries are noise of their own kind, by the share that
            each band shows (:mod:`slotflow.refine_noise`); ``"white"``: all noise is white, at
            the level of the component search.
        backend: of SMC: ``"compiled"``, or ``"blackjax"``: one run of Hamiltonian moves, which is
            for GPUs and far slower on a processor.
    """

    method: Method = "smc"
    repeats: int = 2
    evidence: bool = True
    backend: Literal["compiled", "blackjax"] = "compiled"
    noise: Literal["foreground", "white"] = "foreground"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method: expected {' or '.join(METHODS)}; got {self.method!r}")
        if self.backend not in ("compiled", "blackjax"):
            raise ValueError(f"backend: expected compiled or blackjax; got {self.backend!r}")
        if self.noise not in ("foreground", "white"):
            raise ValueError(f"noise: expected foreground or white; got {self.noise!r}")
        if self.repeats < 1:
            raise ValueError(f"repeats: expected at least 1; got {self.repeats}")


def refine_settings(refine: RefineSettings | str | None) -> RefineSettings | None:
    """Return how samples are refined.

    Raises:
        InputError: an unknown method, or a package that is not there.
    """
    try:
        settings = RefineSettings(refine) if isinstance(refine, str) else refine  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError(f"refine: {error}") from error
    if settings is not None and settings.backend == "blackjax" and find_spec("blackjax") is None:
        raise InputError("refine: backend blackjax needs the package blackjax, which is missing")
    return settings


class Evidence(NamedTuple):
    """ln of a ratio of evidences, and its standard error; NaN where it was not computed."""

    value: float = float("nan")
    error: float = float("nan")


@dataclass(frozen=True, eq=False)
class Refinement:
    """How the sources of one band were refined.

    Attributes:
        first_bin: of the band.
        method: by which.
        slots: (S,) of the network, in the order of the arrays below.
        before: (S, n, 8) the network's own draws of each, in the order of PARAMETERS.
        log_posterior: (n,) ln of prior times likelihood over noise's, over Z: the density of the
            sources together, per unit volume of the parameters' scaled ranges.
        ln_z: evidence for S sources against none.
        more: ln B of S + 1 sources to S.
        fewer: ln B of S sources to S - 1.
        efficiency: effective share of the network's draws as weighted for the exact posterior.
        ess: effective sample size of the refined draws.
        pareto_k: of those weights.
        largest: normalised weight.
        temperatures: of the first run; empty for importance sampling.
        acceptance: of the moves at the last temperature; NaN without moves.
        evaluations: of the likelihood, everything counted.
        divergence: (S, 8) Jensen-Shannon divergence of the network's posterior and the refined
            one, in nats, its bias taken off.
        misfit: (S,) power of the residual around each source, over the noise's.
        warnings: why the refined draws should not be relied on.
        seconds: spent.
        foreground: share of the noise that was taken for unresolved binaries'; NaN in records of
            earlier versions.
    """

    first_bin: int
    method: str
    slots: tuple[int, ...]
    before: Float
    log_posterior: Float
    ln_z: Evidence
    more: Evidence
    fewer: Evidence
    efficiency: float
    ess: float
    pareto_k: float
    largest: float
    temperatures: tuple[float, ...]
    acceptance: float
    evaluations: int
    divergence: Float
    misfit: Float
    warnings: tuple[str, ...]
    seconds: float
    foreground: float = float("nan")


_EVIDENCES: Final = ("ln_z", "more", "fewer")
_NUMBERS: Final = (
    "first_bin", "efficiency", "ess", "pareto_k", "largest", "acceptance", "evaluations", "seconds",
)  # fmt: skip
_ARRAYS: Final = ("before", "log_posterior", "divergence", "misfit")


def packed_refinement(record: Refinement) -> dict[str, NDArray[Any]]:
    """Return a record as arrays by name."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(record, name) for name in _ARRAYS}
    arrays |= {name: np.array(getattr(record, name)) for name in _EVIDENCES}
    return arrays | {
        "numbers": np.array([float(getattr(record, name)) for name in _NUMBERS]),
        "foreground": np.array(record.foreground),
        "slots": np.array(record.slots, dtype=np.int64),
        "temperatures": np.array(record.temperatures, dtype=np.float64),
        "text": np.array([record.method, *record.warnings]),
    }


def unpacked_refinement(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Refinement | None:
    """Invert :func:`packed_refinement`, of names with a prefix; None where there is no record.

    Raises:
        KeyError, ValueError, TypeError: some of it is missing or of another kind.
    """
    if f"{prefix}numbers" not in arrays:
        return None
    part = {name: arrays[prefix + name] for name in (*_ARRAYS, *_EVIDENCES)}
    content: dict[str, Any] = {name: part[name] for name in _ARRAYS}
    content |= {name: Evidence(*part[name].tolist()) for name in _EVIDENCES}
    content |= dict(zip(_NUMBERS, arrays[f"{prefix}numbers"].tolist(), strict=True))
    if f"{prefix}foreground" in arrays:  # not in files of 0.1
        content["foreground"] = float(arrays[f"{prefix}foreground"])
    method, *warnings = arrays[f"{prefix}text"].tolist()
    content |= {"first_bin": int(content["first_bin"]), "evaluations": int(content["evaluations"])}
    return Refinement(
        method=method, warnings=tuple(warnings), slots=tuple(arrays[f"{prefix}slots"].tolist()),
        temperatures=tuple(arrays[f"{prefix}temperatures"].tolist()), **content,
    )  # fmt: skip


def refinement_notes(records: Sequence[Refinement]) -> tuple[str, ...]:
    """Return what the user should know of refined bands, one line each."""
    notes = [
        f"band from bin {one.first_bin}: refinement: {text}"
        for one in records
        for text in one.warnings
    ]
    extra = [one for one in records if one.more.value > LN_STRONG]
    white = [one.first_bin for one in extra if one.foreground < WHITE_SHARE]
    foreground = [one.first_bin for one in extra if not one.foreground < WHITE_SHARE]
    if white:
        notes.append(
            f"in {len(white)} of {len(records)} bands (from bin {_listed(white)}) the likelihood"
            f" favours one source more by ln B > {LN_STRONG:g}"
        )
    if foreground:
        # the loudest binaries of a foreground are sources to it, whatever its noise is
        notes.append(
            f"in {len(foreground)} of {len(records)} bands ln B +1 is above {LN_STRONG:g} where"
            " unresolved binaries are part of the noise: no verdict, the loudest of them look so"
        )
    weak = [one.first_bin for one in records if one.slots and one.fewer.value < 0.0]
    if weak:
        notes.append(
            f"in {len(weak)} of {len(records)} bands (from bin {_listed(weak)}) the likelihood"
            " favours one source less"
        )
    return tuple(notes)


def _listed(bins: Sequence[int]) -> str:
    return ", ".join(map(str, bins[:6])) + (", ..." if len(bins) > 6 else "")
