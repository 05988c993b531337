"""The modified Bessel function I0, scaled by exp(-x), for compiled code: two Chebyshev series."""

from typing import Any, Final

import numba
import numpy as np
import scipy.special
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

Float = NDArray[np.float64]

_SPLIT: Final = 8.0  # below it a series in x, above it one in 1/x


def _near(place: Any) -> Any:
    return scipy.special.i0e(0.5 * _SPLIT * (place + 1.0))


def _far(place: Any) -> Any:
    x = 2.0 * _SPLIT / np.maximum(place + 1.0, 1e-12)
    return np.sqrt(x) * scipy.special.i0e(x)


#: The series' coefficients: arguments of :func:`i0e`, as compiled code that is kept in a cache
#: must not hold arrays.
NEAR: Final[Float] = chebyshev.chebinterpolate(_near, 32)
FAR: Final[Float] = chebyshev.chebinterpolate(_far, 28)


@numba.njit(cache=True, error_model="numpy")
def _series(coefficients, place):  # type: ignore[no-untyped-def]
    """Sum a Chebyshev series at ``place`` in [-1, 1] (Clenshaw)."""
    b1 = 0.0
    b2 = 0.0
    for i in range(coefficients.size - 1, 0, -1):
        b1, b2 = coefficients[i] + 2.0 * place * b1 - b2, b1
    return coefficients[0] + place * b1 - b2


@numba.njit(cache=True, error_model="numpy")
def i0e(x, near, far):  # type: ignore[no-untyped-def]
    """Return exp(-x) I0(x) for x >= 0, to 1e-14; ``near`` and ``far`` are NEAR and FAR."""
    if x < _SPLIT:
        return _series(near, 2.0 * x / _SPLIT - 1.0)
    return _series(far, 2.0 * _SPLIT / x - 1.0) / np.sqrt(x)
