"""How finely the exact likelihood has to sample an observation, and its kernel at that.

What too few slow samples miss is almost all the window's, whose spectrum falls off as 1/k^3, and
little the signal's. So the number is measured for each observation and frequency, not assumed.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from slotflow.config import ObservationSettings
from slotflow.exact_kernel import Kernel
from slotflow.noise import window_samples
from slotflow.response import ResponseGrid

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

MISMATCH: Final = 1e-8  # to the converged response, by default
SIZES: Final = (64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048)
CONVERGED: Final = 8192  # slow samples that stand for any number of them
MAX_ROUGHNESS: Final = 1e3  # m by which spacecraft may lie off a smooth orbit
_FREQUENCY_STEP: Final = 0.25e-3  # Hz: bands in one block of it need equally many samples


def resampled(grid: ResponseGrid, n: int, tukey: float) -> ResponseGrid:
    """Return the same observation at ``n`` slow samples, from a grid of other ones.

    Positions between the samples are those of the Chebyshev series that fits them best: off by
    less than a metre from 128 samples of a year, by tens of metres at its end from 64.

    Raises:
        ValueError: orbits that are not smooth.
    """
    if grid.n % n == 0:
        return grid.thinned(grid.n // n)
    degree = min(24, int(2.75 * np.sqrt(grid.n)))  # more would be ill-determined at the ends
    flat = grid.positions.reshape(9, -1).T
    place = 2.0 * grid.times / grid.duration - 1.0
    series = chebyshev.chebfit(place, flat, degree)
    off = float(np.abs(chebyshev.chebval(place, series).T - flat).max())
    if not off < MAX_ROUGHNESS:
        raise ValueError(f"the spacecraft's positions lie up to {off:.0f} m off smooth orbits")
    times = np.linspace(0.0, grid.duration, n, endpoint=False, dtype=np.float64)
    positions = chebyshev.chebval(2.0 * times / grid.duration - 1.0, series)
    return ResponseGrid(
        grid.duration, grid.t0, times, np.ascontiguousarray(positions.reshape(3, 3, n)),
        grid.arm_length, window_samples(tukey, n),
    )  # fmt: skip


def mismatch(one: Complex, other: Complex) -> Float:
    """Return 1 less the normalised product of responses about one centre: (N, 2, n or m).

    The shorter one is zero where the longer one has bins beside it.
    """
    short, long = (one, other) if one.shape[-1] <= other.shape[-1] else (other, one)
    beside = (long.shape[-1] - short.shape[-1]) // 2
    inner = long[..., beside : beside + short.shape[-1]]
    product = (short.conj() * inner).real.sum(axis=(1, 2))
    norms = (np.abs(short) ** 2).sum(axis=(1, 2)) * (np.abs(long) ** 2).sum(axis=(1, 2))
    return np.asarray(1.0 - product / np.sqrt(norms))


def kernel_at(
    grid: ResponseGrid, observation: ObservationSettings, frequency: float, most: float = MISMATCH
) -> Kernel:
    """Return the kernel of the fewest samples that keep the mismatch below ``most``.

    Args:
        grid: the observation at any number of samples.
        observation: its settings, of which the window is taken.
        frequency: Hz; kernels of a block of 0.25 mHz have equally many samples.
        most: the largest mismatch to the converged response.

    Raises:
        ValueError: no number of samples does it.
    """
    block = int(np.ceil(frequency / _FREQUENCY_STEP))
    n = samples_for(GridKey(grid), observation.tukey, block * _FREQUENCY_STEP, most)
    return Kernel(resampled(grid, n, observation.tukey))


class GridKey:
    """A grid by what it is of: grids hold arrays, which have no hash."""

    def __init__(self, grid: ResponseGrid) -> None:
        self.grid = grid
        self.key = grid.duration, grid.arm_length, grid.positions.tobytes()

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GridKey) and self.key == other.key


@lru_cache(maxsize=64)
def samples_for(key: GridKey, tukey: float, frequency: float, most: float) -> int:
    """Return the least of SIZES whose responses mismatch the converged ones by less than that.

    Measured on sources all over the sky at that frequency and the middle of two bins, where the
    most is missed, with a factor of 1.5 to spare.
    """
    sources = _probes(frequency, key.grid.duration)
    converged, _ = Kernel(resampled(key.grid, CONVERGED, tukey)).response(sources)
    for n in SIZES:
        seen, _ = Kernel(resampled(key.grid, n, tukey)).response(sources)
        if 1.5 * float(mismatch(seen, converged).max()) < most:
            return n
    raise ValueError(f"expected a mismatch that {SIZES[-1]} samples keep; got {most}")


def _probes(frequency: float, duration: float) -> Float:
    rng = np.random.default_rng(0)
    number = 48
    sources = np.empty((number, 8))
    sources[:, 0] = (np.floor(frequency * duration) + rng.choice([0.0, 0.49], number)) / duration
    sources[:, 1] = rng.uniform(-0.1, 0.3, number) / duration**2
    sources[:, 1] *= max(1.0, frequency / 3e-3) ** (11.0 / 3.0)
    sources[:, 2] = 1e-22
    sources[:, 3], sources[:, 7] = rng.uniform(0.0, 2.0 * np.pi, (2, number))
    sources[:, 4] = np.arcsin(rng.uniform(-1.0, 1.0, number))
    sources[:, 5] = rng.uniform(0.0, 0.5 * np.pi, number)
    sources[:, 6] = np.arccos(rng.uniform(-1.0, 1.0, number))
    return sources
