"""The compiled Bessel function against SciPy's."""

import numpy as np
import scipy.special

from slotflow.bessel import FAR, NEAR, i0e


def test_equals_scipy() -> None:
    x = np.concatenate([[0.0, 8.0, np.nextafter(8.0, 0.0)], np.logspace(-6, 8, 4000)])
    seen = [i0e(value, NEAR, FAR) for value in x]
    np.testing.assert_allclose(seen, scipy.special.i0e(x), rtol=2e-14)
