"""Writing a simulated observation in the layout of Mojito L1, by the ``mojito`` package's writer.

``tdis``: X2, Y2, Z2, A2, E2, T2 in Hz (fractional frequency times ``laser_frequency``), NaN and
``tdi_flags`` = 1 inside gaps. The single-link ``eta`` are not simulated: NaN, ``eta_flags`` = 1.
``ltts``, ``orbits``: from lisaorbits, ICRS, every six hours. The response itself has one constant
arm length in its delays (attribute ``orbit_L``).
``noise_estimates``: one covariance for the whole observation, the instrument's one-sided model
density, Hz^2/Hz; that of ``eta`` is NaN.

Beside these: ``Binaries``, the sources in the columns of a Mojito catalogue; ``truth`` and ``sky``,
the same in our own and in the LDC's conventions (:mod:`slotflow.simulate.observation_file`);
``gaps``: (G, 2) begin and end, s since t0.
"""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from slotflow import __version__
from slotflow.atomic import written
from slotflow.channels import aet_to_xyz, xyz_to_aet
from slotflow.config import ObservationSettings
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, PHI0, PSI, RA, wrap
from slotflow.simulate.observation_file import (
    ObservationContent,
    orbit_attributes,
    root_attributes,
    text,
    write_gaps,
    write_truth,
)
from slotflow.simulate.orbits import orbits
from slotflow.simulate.series import NOISE_FLOOR, instrument_density

Float = NDArray[np.float64]

LASER_FREQUENCY: Final = 2.816e14  # Hz
LINKS: Final = (12, 23, 31, 13, 32, 21)  # receiver, emitter
ORBIT_STEP: Final = 21600.0  # s, at most
NOISE_FREQUENCIES: Final = 500
_OPTIONS: Final[dict[str, Any]] = {"compression": "lzf", "shuffle": True, "fletcher32": True}


def to_mojito(sources: Float, t0: float) -> dict[str, Float]:
    """Return the columns of a Mojito catalogue: (S, 8) -> {column: (S,)}.

    The sky and the polarisation angle are ICRS, as ours. ``TrueAnomaly`` is the phase of the wave
    at ``TimeReferenceSSBFrame`` with the physical sign, ``2 pi f t + pi fdot t^2 + TrueAnomaly``:
    ours is subtracted.

    Args:
        sources: (S, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
        t0: time to which f0 and phi0 refer, s.
    """
    turn = 2.0 * np.pi
    return {
        "Amplitude": sources[:, AMPLITUDE],
        "GW22FrequencySSBFrame": sources[:, F0],
        "GW22FrequencyDerivativeSourceFrame": sources[:, FDOT],
        "InclinationAngle": sources[:, IOTA],
        "PolarisationAngle": wrap(sources[:, PSI], np.pi),
        "RightAscension": wrap(sources[:, RA], turn),
        "Declination": sources[:, DEC],
        "TrueAnomaly": wrap(-sources[:, PHI0], turn),
        "TimeReferenceSSBFrame": np.full(len(sources), t0),
    }


def write_mojito(path: Path, content: ObservationContent) -> None:
    """Write the file under a temporary name, then rename it.

    Args:
        path: the file.
        content: what to write, TDI 2.

    Raises:
        InputError: the file cannot be written.
        ValueError: content of another TDI generation.
    """
    from mojito import writer
    from mojito.reader import MojitoL1File

    settings = content.settings
    if settings.tdi_generation != "2.0":
        raise ValueError(f"expected TDI '2.0'; got {settings.tdi_generation!r}")
    with written(path) as partial, MojitoL1File(partial, "w") as mojito:
        writer.write_attrs(
            mojito,
            pipeline_name=f"slotflow {__version__}",
            laser_frequency=LASER_FREQUENCY,
            lolipops_version="none",
        )
        _write_tdis(mojito, content)
        _write_orbits(mojito, settings)
        _write_noise(mojito, content)
        file = mojito.files[0]
        file.attrs.update(root_attributes(content))
        file["tdis"].attrs.update(
            {"tdi_generation": "2.0", "t0": settings.t0, **orbit_attributes(settings)}
        )
        if settings.gaps.any:
            write_gaps(file, "gaps", content)
        _write_binaries(file, content)
        write_truth(file, content, {})


def _write_tdis(mojito: Any, content: ObservationContent) -> None:
    from mojito import writer
    from mojito.sampling import UniformTimeSampling

    settings = content.settings
    xyz = LASER_FREQUENCY * content.observed
    names = ("x2", "y2", "z2", "a2", "e2", "t2")
    data = dict(zip(names, (*xyz, *xyz_to_aet(xyz)), strict=True))
    samples = xyz.shape[1]
    data |= {f"eta_{link}": np.full(samples, np.nan) for link in LINKS}
    data |= {"eta_flags": np.ones(samples, np.int64), "tdi_flags": content.missing.astype(np.int64)}
    sampling = UniformTimeSampling(t0=settings.t0, dt=settings.dt, size=samples)
    source: Any = SimpleNamespace(**data)
    writer.create_tdis(mojito, sampling, data=source, **_OPTIONS)
    group = mojito.files[0]["tdis"]
    group.attrs["units"] = "Hz; t0 in s since 2035-01-01T00:00:00 TCB"
    group["eta_flags"].attrs["description"] = "all 1: the single links are not simulated"
    group["tdi_flags"].attrs["description"] = "1 inside gaps, where the series are NaN"


def _write_orbits(mojito: Any, settings: ObservationSettings) -> None:
    """Write light travel times, positions and velocities, both ends of the span included."""
    from mojito import writer
    from mojito.sampling import UniformTimeSampling

    steps = max(8, math.ceil(settings.duration / ORBIT_STEP))
    sampling = UniformTimeSampling(t0=settings.t0, dt=settings.duration / steps, size=steps + 1)
    times, orbit = sampling.t(), orbits(settings)
    travel = orbit.compute_ltt(times, list(LINKS)).T
    change = orbit.compute_ltt_derivative(times, list(LINKS)).T
    data = {f"ltt_{link}": row for link, row in zip(LINKS, travel, strict=True)}
    data |= {f"ltt_derivative_{link}": row for link, row in zip(LINKS, change, strict=True)}
    source: Any = SimpleNamespace(**data)
    writer.create_ltts(mojito, sampling, data=source, **_OPTIONS)
    positions = orbit.compute_position(times, [1, 2, 3])  # (time, spacecraft, coordinate)
    velocities = orbit.compute_velocity(times, [1, 2, 3])
    craft = {f"position_{s}": positions[:, s - 1] for s in (1, 2, 3)}
    craft |= {f"velocity_{s}": velocities[:, s - 1] for s in (1, 2, 3)}
    writer.create_orbits(mojito, sampling, data=SimpleNamespace(**craft), **_OPTIONS)


def _write_noise(mojito: Any, content: ObservationContent) -> None:
    from mojito import writer
    from mojito.sampling import LogUniformFrequencySampling, UniformTimeSampling

    settings = content.settings
    whole = UniformTimeSampling(t0=settings.t0, dt=settings.duration, size=1)
    frequencies = LogUniformFrequencySampling(
        fmin=NOISE_FLOOR, fmax=0.5 / settings.dt, size=NOISE_FREQUENCIES
    )
    density = LASER_FREQUENCY**2 * instrument_density(frequencies.f(), settings)
    density = density * float(content.noise)
    to_xyz = aet_to_xyz(np.eye(3))
    shape = (1, NOISE_FREQUENCIES, 6, 6)
    source = SimpleNamespace(
        aet=np.einsum("an,ab->nab", density, np.eye(3))[None].astype(np.complex128),
        xyz=np.einsum("ia,an,ja->nij", to_xyz, density, to_xyz)[None].astype(np.complex128),
        eta=np.full(shape, np.nan, dtype=np.complex128),
    )
    writer.create_noise_estimates(mojito, whole, frequencies, data=source, **_OPTIONS)
    mojito.files[0]["noise_estimates"].attrs["description"] = (
        "instrument alone, one-sided, Hz^2/Hz; eta not given (NaN)"
    )


def _write_binaries(file: h5py.File, content: ObservationContent) -> None:
    names = content.given_names + content.member_names
    if not names:
        return
    sources = np.concatenate([content.given, content.members])
    group = file.create_group("Binaries")
    group["Name"] = text(names)
    for column, values in to_mojito(sources, content.settings.t0).items():
        group[column] = values
    group.attrs["conventions"] = (
        "Hz, Hz/s, strain, rad; ICRS; at TimeReferenceSSBFrame, s since 2035-01-01T00:00:00 TCB;"
        " phase 2 pi f t + pi fdot t^2 + TrueAnomaly; given sources, and members of the Galaxy"
        " above galaxy_truth_snr"
    )
