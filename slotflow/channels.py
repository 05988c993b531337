"""TDI channels: X, Y, Z and A, E, T, plain and whitened, and the phase between TDI 1.5 and 2."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.config import ObservationSettings
from slotflow.noise import model_psd
from slotflow.response import tdi2_factor

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

_TO_AET: Final = np.array(
    [
        [-1.0 / math.sqrt(2.0), 0.0, 1.0 / math.sqrt(2.0)],
        [1.0 / math.sqrt(6.0), -2.0 / math.sqrt(6.0), 1.0 / math.sqrt(6.0)],
        [1.0 / math.sqrt(3.0), 1.0 / math.sqrt(3.0), 1.0 / math.sqrt(3.0)],
    ]
)


def xyz_to_aet[T: (np.float64, np.complex128)](xyz: NDArray[T]) -> NDArray[T]:
    """Return A = (Z-X)/sqrt2, E = (X-2Y+Z)/sqrt6, T = (X+Y+Z)/sqrt3: (3, n) -> (3, n)."""
    return np.asarray(_TO_AET @ xyz)


def aet_to_xyz[T: (np.float64, np.complex128)](aet: NDArray[T]) -> NDArray[T]:
    """Invert :func:`xyz_to_aet` (an orthogonal matrix): (3, n) -> (3, n)."""
    return np.asarray(_TO_AET.T @ aet)


def from_standard(band: Complex, first_bin: int, settings: ObservationSettings) -> Complex:
    """Return a whitened band in the observation's own channels and TDI generation.

    Whitened data of TDI 2 are those of TDI 1.5 times the phase of ``1 - exp(-4 i x)``. X, Y
    and Z are whitened by their common density ``(2 S_A + S_T) / 3``; their noises are
    correlated.

    Args:
        band: (3, K) whitened A, E, T of TDI 1.5.
        first_bin: of index 0.
        settings: the observation.
    """
    band = band * _phase(first_bin, band.shape[-1], settings)
    if settings.channels == "AET":
        return np.asarray(band)
    sigma, common = _deviations(first_bin, band.shape[-1], settings)
    return aet_to_xyz(band * sigma) / common


def to_standard(band: Complex, first_bin: int, settings: ObservationSettings) -> Complex:
    """Invert :func:`from_standard`: whitened A, E, T of TDI 1.5, (3, K)."""
    if settings.channels == "XYZ":
        sigma, common = _deviations(first_bin, band.shape[-1], settings)
        band = xyz_to_aet(band * common) / sigma
    return np.asarray(band * _phase(first_bin, band.shape[-1], settings).conj())


def is_standard(settings: ObservationSettings) -> bool:
    """Whether bands of this observation are A, E, T of TDI 1.5 as they are."""
    return settings.channels == "AET" and settings.tdi_generation == "1.5"


def _phase(first_bin: int, bins: int, settings: ObservationSettings) -> Complex:
    if settings.tdi_generation == "1.5":
        return np.ones(1, dtype=np.complex128)
    frequency = (first_bin + np.arange(bins)) / settings.duration
    factor = tdi2_factor(frequency, settings.arm_length)
    return np.asarray(factor / np.abs(factor))


def _deviations(first_bin: int, bins: int, settings: ObservationSettings) -> tuple[Float, Float]:
    """Return the square roots of the model densities of A, E, T, and of X (any unit)."""
    frequency = (first_bin + np.arange(bins)) / settings.duration
    total = model_psd(frequency, settings).total
    return np.sqrt(total), np.sqrt((total[0] + total[1] + total[2]) / 3.0)
