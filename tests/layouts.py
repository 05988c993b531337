"""Files in the layouts that users have, by h5py alone, and by the mojito package's own writer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import scipy.fft
from mojito import MojitoL1File, writer
from mojito.sampling import UniformTimeSampling

from slotflow.channels import aet_to_xyz
from slotflow.noise import total_psd

LASER = 2.816e14  # Hz


def noise(samples: int, dt: float, generation: str = "1.5", seed: int = 4) -> np.ndarray:
    """X, Y, Z of the model's noise: (3, samples)."""
    rng = np.random.default_rng(seed)
    frequency = np.maximum(np.fft.rfftfreq(samples, dt), 1e-5)
    spectrum = rng.standard_normal((3, frequency.size, 2)).view(complex)[..., 0]
    spectrum *= np.sqrt(0.25 * samples * dt * total_psd(frequency, tdi_generation=generation))
    return aet_to_xyz(scipy.fft.irfft(spectrum, n=samples) / dt)


def white(samples: int, seed: int = 1) -> np.ndarray:
    """X, Y, Z of white noise: (3, samples)."""
    return 1e-20 * np.random.default_rng(seed).standard_normal((3, samples))


def ldc2_rows(xyz: np.ndarray, dt: float, start: float = 0.0) -> np.ndarray:
    """The compound rows of Sangria and Spritz: (N, 1)."""
    rows = np.zeros((xyz.shape[1], 1), dtype=[(name, "<f8") for name in "tXYZ"])
    for name, column in zip("tXYZ", (start + dt * np.arange(xyz.shape[1]), *xyz), strict=True):
        rows[name][:, 0] = column
    return rows


def write_sangria(path: Path, xyz: np.ndarray, dt: float, **attributes: Any) -> Path:
    """What LDC2 Sangria holds, as far as it matters here."""
    with h5py.File(path, "w") as file:
        file["obs/tdi"] = ldc2_rows(xyz, dt)
        file["obs/tdi"].attrs.update(attributes)
        file["obs/config/dt_tdi"] = dt
        file["sky/dgb/tdi"] = ldc2_rows(xyz, dt)[:10]
    return path


def write_spritz(path: Path, xyz: np.ndarray, dt: float, **attributes: Any) -> Path:
    """What LDC2 Spritz holds: the observed series, and others beside it."""
    whole = ldc2_rows(np.nan_to_num(xyz), dt)
    with h5py.File(path, "w") as file:
        for name in ("clean", "sky", "noisefree", "gal"):
            file[f"{name}/tdi"] = whole[:10]
        file["obs/tdi"] = ldc2_rows(xyz, dt)
        file["obs/tdi"].attrs.update(attributes)
    return path


def write_radler(path: Path, xyz: np.ndarray, dt: float, **attributes: Any) -> Path:
    """What LDC1 Radler holds: a plain array t, X, Y, Z."""
    times = dt * np.arange(xyz.shape[1])
    with h5py.File(path, "w") as file:
        file["H5LISA/PreProcess/TDIdata"] = np.stack([times, *xyz], axis=1)
        file["H5LISA/PreProcess/TDIdata"].attrs.update(attributes)
        sources = file.create_group("H5LISA/GWSources/GalBinaries")
        sources["Cadence"] = dt
        sources["ObservationDuration"] = dt * xyz.shape[1]
    return path


def write_mojito(
    path: Path, channels: dict[str, np.ndarray], dt: float, *, t0: float = 0.0,
    flags: np.ndarray | None = None, laser: float = LASER, orbit: Any = None,
) -> Path:  # fmt: skip
    """A signal brick by the package's writer: ``x2=...`` in fractional frequency."""
    size = len(next(iter(channels.values())))
    data: dict[str, Any] = {name: laser * row for name, row in channels.items()}
    if flags is not None:
        data["tdi_flags"] = flags.astype(np.int64)
    with MojitoL1File(path, "w") as mojito:
        writer.write_attrs(
            mojito, pipeline_name="test", laser_frequency=laser, lolipops_version="none"
        )
        sampling = UniformTimeSampling(t0=t0, dt=dt, size=size)
        source: Any = SimpleNamespace(**data)
        writer.create_tdis(mojito, sampling, data=source)
        if orbit is not None:
            step = 43200.0
            points = UniformTimeSampling(t0=t0, dt=step, size=int(size * dt / step) + 2)
            positions = orbit.compute_position(points.t(), [1, 2, 3])
            craft = {f"position_{s}": positions[:, s - 1] for s in (1, 2, 3)}
            writer.create_orbits(mojito, points, data=SimpleNamespace(**craft))
    return path


def xyz2(xyz: np.ndarray) -> dict[str, np.ndarray]:
    """Channels of TDI 2 by Mojito's names."""
    return dict(zip(("x2", "y2", "z2"), xyz, strict=True))
