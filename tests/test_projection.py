"""Data on all sources' responses together."""

import numpy as np

from slotflow.projection import joined


def test_equals_least_squares_in_one_matrix() -> None:
    """Product and Gram matrix give the fit of a design matrix of whitened columns."""
    rng = np.random.default_rng(1)
    bases = rng.normal(size=(3, 2, 2, 2, 30)) + 1j * rng.normal(size=(3, 2, 2, 2, 30))
    data = rng.normal(size=(2, 30)) + 1j * rng.normal(size=(2, 30))
    snr_gram = rng.normal(size=(3, 2, 2, 2)).astype(complex)
    for weight in (rng.uniform(0.5, 2.0, (3, 2)), rng.uniform(0.5, 2.0, (1, 2))):
        seen = joined(data, bases, snr_gram, weight)
        assert seen.snr_gram is snr_gram
        for p in range(3):
            root = np.sqrt(weight[p % len(weight)])[:, None]
            design = (bases[p].reshape(4, 2, 30) * root).reshape(4, 60).T
            target = (data * root).reshape(-1)
            best, rest, *_ = np.linalg.lstsq(design, target)
            np.testing.assert_allclose(np.linalg.solve(seen.gram[p], seen.product[p]), best)
            gain = np.vdot(seen.product[p], best).real
            np.testing.assert_allclose(seen.power[p] - gain, rest[0], rtol=1e-10)
            np.testing.assert_allclose(seen.gram[p], seen.gram[p].conj().T)
