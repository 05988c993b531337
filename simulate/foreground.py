"""The confusion foreground of a band: thousands of weak binaries, summed explicitly.

The unresolved Galaxy is not stationary Gaussian noise (an anisotropic Galaxy seen by a
turning detector), so it is simulated. A pool of binaries of one frequency block keeps the
responses of the two circular polarisations; each use draws inclination, polarisation
angle and phase anew, which is exact, and shifts the response by whole bins. That errs by
0.5, 1 and 2% of the response over 64, 128 and 256 bins, so the entries lie at several nodes
across the block and a member takes one of the nearest node.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from slotflow.config import ObservationSettings, PopulationSettings
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, PHI0, PSI, RA
from slotflow.response import C, ResponseGrid
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.population import (
    STANDARD,
    amplitude,
    chirp,
    draw_frequencies,
    draw_members,
    expected_number,
)
from slotflow.waveform import response_ae

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Complex = NDArray[np.complex128]

NODES: Final = 4
POOL_SIZE: Final = 2048  # at most; fewer where fewer binaries are in a band
#: Slow samples (and bins) of an entry's response, up to these frequencies: the Doppler
#: modulation widens it. The error is 1% and less, mostly the window's.
SLOW_SAMPLES: Final = ((2.5e-3, 64), (5e-3, 96), (8e-3, 128), (16e-3, 256))


class Foreground(NamedTuple):
    """One realisation: response (3, bins), members in it, and louder ones left out."""

    response: Complex
    members: int
    removed: int


class Members(NamedTuple):
    """The members drawn for a band, (P,) each: bin, pool entry, cos iota, and two phases.

    The phases are those of the circular coefficients, 2 psi - phi0 and -2 psi - phi0.
    """

    k: Int
    entry: Int
    cos_iota: Float
    phases: Float


@numba.njit(cache=True)
def _add(shift, entry, right, left, basis_re, basis_im, out_re, out_im):  # type: ignore[no-untyped-def]
    """Add right * basis[0] + left * basis[1] of each entry at its place, cut at both sides."""
    n = basis_re.shape[3]
    bins = out_re.shape[1]
    for s in range(shift.size):
        low = max(0, -shift[s])
        high = min(n, bins - shift[s])
        if high <= low:
            continue
        rr, ri = right[s].real, right[s].imag
        lr, li = left[s].real, left[s].imag
        for c in range(2):
            r_re = basis_re[entry[s], 0, c, low:high]
            r_im = basis_im[entry[s], 0, c, low:high]
            l_re = basis_re[entry[s], 1, c, low:high]
            l_im = basis_im[entry[s], 1, c, low:high]
            to_re = out_re[c, shift[s] + low : shift[s] + high]
            to_im = out_im[c, shift[s] + low : shift[s] + high]
            for j in range(high - low):
                to_re[j] += rr * r_re[j] - ri * r_im[j] + lr * l_re[j] - li * l_im[j]
                to_im[j] += rr * r_im[j] + ri * r_re[j] + lr * l_im[j] + li * l_re[j]


def slow_samples(frequency: float) -> int:
    """Return how many bins an entry's response fills at a frequency (Hz)."""
    for highest, samples in SLOW_SAMPLES:
        if frequency <= highest:
            return samples
    raise ValueError(f"expected a frequency of at most {SLOW_SAMPLES[-1][0]} Hz; got {frequency}")


@dataclass(frozen=True)
class ForegroundPool:
    """Binaries of one frequency block, ready to be summed (see the module).

    Attributes:
        duration: observation time T, s.
        arm_length: m.
        window_power: mean of the squared window over the slow samples.
        population: who is in the Galaxy.
        nodes: (NODES,) the Fourier bins at which responses were made; those of node i are the
            i-th of NODES equal parts of the entries.
        reach: bins around the block's middle for which the nodes were laid.
        sources: (entries, 8) at their node's frequency; iota, psi, phi0 zero.
        basis_re, basis_im: (entries, 2, 2, n) circular polarisation, channel A and E, bin;
            single precision, for unit amplitude.
        gram: (entries, 3) sums over A, E and bins of |R|^2, |L|^2 and conj(R) L (complex).
    """

    duration: float
    arm_length: float
    window_power: float
    population: PopulationSettings
    nodes: Int
    reach: int
    sources: Float
    basis_re: NDArray[np.float32]
    basis_im: NDArray[np.float32]
    gram: Complex

    @classmethod
    def build(
        cls,
        rng: np.random.Generator,
        block_bin: int,
        settings: ObservationSettings,
        reach: int = 256,
        population: PopulationSettings = STANDARD,
        entries: int | None = None,
    ) -> "ForegroundPool":
        """Draw the binaries of a block and compute their responses (some 10-40 ms).

        Args:
            rng: source of the randomness.
            block_bin: the block's middle, a Fourier bin.
            settings: the observation.
            reach: bins on either side of it in which members will lie.
            population: who is in the Galaxy.
            entries: binaries in the pool; by the number expected in reach where None.
        """
        middle = block_bin / settings.duration
        if entries is None:
            wide = reach / settings.duration
            expected = expected_number(max(middle - wide, 0.5 * middle), middle + wide, population)
            entries = int(np.clip(expected, POOL_SIZE // 4, POOL_SIZE))
        each = max(1, entries // NODES)
        grid = response_grid(settings, slow_samples(middle + reach / settings.duration))
        nodes = block_bin + np.rint(reach * ((2 * np.arange(NODES) + 1) / NODES - 1)).astype(int)
        at = np.repeat(nodes, each)
        f0 = (at + rng.uniform(-0.5, 0.5, at.size)) / settings.duration
        drawn = draw_members(rng, at.size, population)
        sources = np.zeros((at.size, 8))
        sources[:, F0], sources[:, FDOT] = f0, chirp(f0, drawn.chirp_mass)
        sources[:, AMPLITUDE] = amplitude(f0, drawn.chirp_mass, drawn.distance)
        sources[:, RA], sources[:, DEC] = drawn.ra, drawn.dec
        basis = _circular_basis(sources, grid)
        right, left = basis[:, 0], basis[:, 1]
        gram = [(abs(right) ** 2), (abs(left) ** 2), right.conj() * left]
        return cls(
            duration=settings.duration,
            arm_length=grid.arm_length,
            window_power=float(np.mean(grid.window**2)),
            population=population,
            nodes=nodes.astype(np.int64),
            reach=reach,
            sources=sources,
            basis_re=np.ascontiguousarray(basis.real, dtype=np.float32),
            basis_im=np.ascontiguousarray(basis.imag, dtype=np.float32),
            gram=np.stack([g.sum(axis=(1, 2)) for g in gram], axis=-1),
        )

    def draw_members(
        self, rng: np.random.Generator, first_bin: int, bins: int, rate_scale: float
    ) -> Members:
        """Draw who is in the bins ``first_bin .. first_bin + bins - 1``.

        Args:
            rng: source of the randomness.
            first_bin: the lowest bin.
            bins: how many.
            rate_scale: factor on the mean number of binaries.
        """
        edges = (first_bin - 0.5) / self.duration, (first_bin + bins - 0.5) / self.duration
        number = int(rng.poisson(rate_scale * expected_number(*edges, self.population)))
        frequency = draw_frequencies(rng, *edges, number, self.population)
        k = np.rint(frequency * self.duration).astype(np.int64)
        k = np.clip(k, first_bin, first_bin + bins - 1)
        each = len(self.sources) // NODES
        entry = each * self._node(k) + rng.integers(0, each, number)
        cos_iota = rng.uniform(-1.0, 1.0, number)
        return Members(k, entry, cos_iota, rng.uniform(0.0, 2.0 * np.pi, (2, number)))

    def _node(self, k: Int) -> Int:
        lowest = int(self.nodes[0]) - self.reach // NODES
        return np.clip((k - lowest) * NODES // (2 * self.reach), 0, NODES - 1)

    def draw(
        self,
        rng: np.random.Generator,
        first_bin: int,
        bins: int,
        rate_scale: float,
        psd: Float,
        snr_max: float,
    ) -> Foreground:
        """Draw one realisation of the foreground in a band.

        Args:
            rng: source of the randomness.
            first_bin: the band's first bin.
            bins: the band's width.
            rate_scale: factor on the mean number of binaries.
            psd: (bins + 2 margin,) density of A (and E) in TDI 1.5 from bin
                ``first_bin - margin``, 1/Hz, against which a member's SNR is taken; members are
                drawn over all these bins.
            snr_max: louder members are left out.

        Returns:
            The response, A, E, T (T zero), TDI 1.5 in fractional frequency x seconds, and counts.
        """
        start = first_bin - (psd.size - bins) // 2
        members = self.draw_members(rng, start, psd.size, rate_scale)
        right, left = self._coefficients(members)
        quiet = self._snr2(members.entry, right, left, psd[members.k - start]) <= snr_max**2
        response = self.response(members, first_bin, bins, quiet)
        return Foreground(response, int(quiet.sum()), int((~quiet).sum()))

    def response(
        self, members: Members, first_bin: int, bins: int, chosen: NDArray[np.bool_] | None = None
    ) -> Complex:
        """Sum members (those ``chosen``, all where None) in a band: A, E, T, (3, bins), T zero."""
        right, left = self._coefficients(members)
        shift = members.k - self.basis_re.shape[3] // 2 - first_bin
        entry = members.entry
        if chosen is not None:
            shift, entry, right, left = shift[chosen], entry[chosen], right[chosen], left[chosen]
        out_re, out_im = np.zeros((3, bins), np.float32), np.zeros((3, bins), np.float32)
        _add(
            shift, entry, right.astype(np.complex64), left.astype(np.complex64),
            self.basis_re, self.basis_im, out_re, out_im,
        )  # fmt: skip
        return out_re.astype(np.float64) + 1j * out_im

    def explicit(self, members: Members) -> Float:
        """Return the members as sources (P, 8) of their own frequency, for a direct sum."""
        sources = self.sources[members.entry]
        node_bin = self.nodes[members.entry // (len(self.sources) // NODES)]
        before = sources[:, F0].copy()
        sources[:, F0] += (members.k - node_bin) / self.duration
        sources[:, FDOT] *= (sources[:, F0] / before) ** (11 / 3)
        sources[:, AMPLITUDE] *= (members.k / node_bin) ** (2 / 3)
        sources[:, PSI] = np.mod(0.25 * (members.phases[0] - members.phases[1]), np.pi)
        sources[:, IOTA] = np.arccos(members.cos_iota)
        # phi0 follows from the sum of the phases once psi, known up to pi, is chosen
        sources[:, PHI0] = np.mod(2.0 * sources[:, PSI] - members.phases[0], 2.0 * np.pi)
        return sources

    def _coefficients(self, members: Members) -> tuple[Complex, Complex]:
        """Return the circular coefficients, relative to each entry's node."""
        k, entry = members.k, members.entry
        node = self.nodes[entry // (len(self.sources) // NODES)]
        # The amplitude grows as f^(2/3), the response of A and E as x sin x, x = 2 pi f L / c
        unit = 2.0 * np.pi * self.arm_length / C / self.duration
        x, x0 = unit * k, unit * node
        scale = (k / node) ** (2 / 3) * (x * np.sin(x)) / (x0 * np.sin(x0))
        size = self.sources[entry, AMPLITUDE] * scale
        right = -size * (1.0 + members.cos_iota) ** 2 * np.exp(1j * members.phases[0])
        left = -size * (1.0 - members.cos_iota) ** 2 * np.exp(1j * members.phases[1])
        return right, left

    def _snr2(self, entry: Int, right: Complex, left: Complex, psd: Float) -> Float:
        """Return SNR^2 = 4 / (T S mean w^2) sum over A, E and bins of |h|^2."""
        gram = self.gram[entry]
        power = abs(right) ** 2 * gram[:, 0].real + abs(left) ** 2 * gram[:, 1].real
        power = power + 2.0 * (right.conj() * left * gram[:, 2]).real
        return np.asarray(4.0 * power / (self.duration * psd * self.window_power))


def _circular_basis(sources: Float, grid: ResponseGrid) -> Complex:
    """Return the responses (entries, 2, 2, n) to unit circular coefficients, in A and E."""
    right = np.tile(np.array([0.5, -0.5j]), (len(sources), 1))
    parts = [response_ae(sources, grid, d)[0] for d in (right, right.conj())]
    return np.stack(parts, axis=1)
