"""slotflow.fit: the local fit of one binary, and data that are no numbers."""

import numpy as np
import pytest

from slotflow.fit import LocalFit
from slotflow.response import ResponseGrid

CENTRE = 60_000
START = np.array([CENTRE + 0.2, 1.0, 0.3, 0.1])
AMPLITUDES = np.array([40.0 + 10.0j, -20.0 + 30.0j])


def _fitted(fit: LocalFit, data: np.ndarray, sigma: np.ndarray) -> tuple[float, np.ndarray]:
    x = START.copy()
    f, _, _ = fit.run(x, CENTRE, data, sigma, 1.0)
    return f, x


@pytest.fixture(scope="module")
def sigma(slow_grid: ResponseGrid) -> np.ndarray:
    """The divisor under which the binary of unit coefficients has unit power."""
    fit = LocalFit(slow_grid)
    plain = fit.model(START, CENTRE, np.array([1.0 + 0j, 0j]), np.ones(2))
    return np.full(2, np.sqrt((np.abs(plain) ** 2).sum()))


def _data(fit: LocalFit, x: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """A binary without noise, as a slow series."""
    n = fit.grid.n
    return fit.data(fit.model(x, CENTRE, AMPLITUDES, sigma), CENTRE, CENTRE - n // 2)


def test_a_binary_is_found_from_nearby(slow_grid: ResponseGrid, sigma: np.ndarray) -> None:
    """Without noise F is all the power that the data have, and x the truth."""
    fit, truth = LocalFit(slow_grid), START + np.array([0.1, 0.02, 0.02, 0.0])
    data = _data(fit, truth, sigma)
    f, x = _fitted(fit, data, sigma)
    assert f == pytest.approx((np.abs(data) ** 2).sum(), rel=1e-3)
    assert abs(x[0] - truth[0]) < 0.02


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, complex(0.0, np.nan), np.inf * 1j])
@pytest.mark.parametrize("where", ["one sample", "all"])
def test_data_that_are_no_numbers(
    slow_grid: ResponseGrid, sigma: np.ndarray, value: complex, where: str
) -> None:
    """The fit returns, from where it began, with an F that no threshold is below."""
    fit = LocalFit(slow_grid)
    good = _data(fit, START, sigma)
    data = good.copy()
    data[7 if where == "one sample" else slice(None)] = value
    f, x = _fitted(fit, data, sigma)
    for threshold in (-1e300, 0.0, 22.0):
        assert not f > threshold
    np.testing.assert_array_equal(x, START)
    assert _fitted(fit, good, sigma)[0] > 22.0  # and the next is as ever


@pytest.mark.parametrize("divisor", [0.0, np.nan])
def test_noise_of_no_power(slow_grid: ResponseGrid, sigma: np.ndarray, divisor: float) -> None:
    fit = LocalFit(slow_grid)
    with np.errstate(divide="ignore"):
        f, _ = _fitted(fit, _data(fit, START, sigma), np.array([divisor, sigma[1]]))
    assert not f > -1e300
