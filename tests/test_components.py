"""The component search: against known sources in white noise, and by linearity."""

import numpy as np
import pytest

from slotflow.components import FINE_HEIGHT, ComponentSearch
from slotflow.config import ComponentSettings, ObservationSettings
from slotflow.parameters import DEC, RA
from slotflow.response import ResponseGrid, response
from slotflow.simulate.orbits import response_grid
from slotflow.starts import separation
from slotflow.templates import STEPS, make_bank, sky_grid
from tests.synthetic import random_sources

BINS = 256
FIRST = 47000  # near 1.5 mHz
SETTINGS = ComponentSettings()


def noise(rng: np.random.Generator) -> np.ndarray:
    z = rng.normal(size=(2, BINS)) + 1j * rng.normal(size=(2, BINS))
    return (z / np.sqrt(2)).astype(np.complex64)


def add(
    band: np.ndarray, source: np.ndarray, snr: float, observation: ObservationSettings
) -> float:
    """Add one source to the band at that SNR (unit noise per bin); return its amplitude."""
    h, first = response(source[None], response_grid(observation, 256))
    amplitude = snr / np.sqrt(2 * (np.abs(h[0, :2]) ** 2).sum())
    low = int(first[0]) - FIRST
    a, b = max(low, 0), min(low + 256, BINS)
    band[:, a:b] += amplitude * h[0, :2, a - low : b - low]
    return float(amplitude * source[2])


def source_at(
    rng: np.random.Generator, place: float, observation: ObservationSettings
) -> np.ndarray:
    one = random_sources(rng, 1, 1e-3, 2e-3, observation.duration)[0]
    one[0] = (FIRST + place) / observation.duration
    return one


@pytest.fixture(scope="module")
def search(slow_grid: ResponseGrid) -> ComponentSearch:
    return ComponentSearch(slow_grid, SETTINGS)


def test_isolated_loud_sources_are_found_within_their_widths(
    search: ComponentSearch, observation: ObservationSettings
) -> None:
    """Offsets over sigma from the Hessian are of order one for frequency and sky."""
    rng = np.random.default_rng(0)
    pulls, amplitudes = [], []
    for _ in range(40):
        band = noise(rng)
        source = source_at(rng, rng.uniform(60, 196), observation)
        amplitude = add(band, source, 30.0, observation)
        found = search(band, FIRST, np.ones(2)).components
        best = found[np.argmax(found["f_statistic"])]
        sigma = np.sqrt(np.diag(best["covariance"]))
        offset = best["bin"] - (source[0] * observation.duration - FIRST)
        east = (best["ra"] - source[RA] + np.pi) % (2 * np.pi) - np.pi
        pulls.append(
            np.abs([offset, east * np.cos(source[DEC]), best["dec"] - source[DEC]]) / sigma[:3]
        )
        norm = np.hypot(*np.abs(best["plus"] + np.array([1j, -1j]) * best["cross"]))
        c = np.cos(source[6])
        amplitudes.append(norm / (amplitude * np.hypot((1 + c) ** 2, (1 - c) ** 2)))
        # 2F is SNR^2 plus four degrees of freedom
        assert best["f_statistic"] * 2 == pytest.approx(900, abs=5 * 2 * 30 + 10)
    assert (np.median(pulls, axis=0) < 1.2).all()  # 0.67 for an exact Gaussian
    assert (np.median(pulls, axis=0) > 0.35).all()
    assert np.std(amplitudes) < 0.12
    assert np.mean(amplitudes) == pytest.approx(1.0, abs=0.05)


def test_a_weak_source_beside_a_loud_one_is_found(
    search: ComponentSearch, observation: ObservationSettings
) -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(20):
        band = noise(rng)
        add(band, source_at(rng, 128.3, observation), 80.0, observation)
        weak = source_at(rng, 137.8, observation)
        add(band, weak, 15.0, observation)
        found = search(band, FIRST, np.ones(2)).components
        hits += bool((np.abs(found["bin"] - 137.8) < 0.5).any())
    assert hits >= 18


def test_noise_alone_gives_few_components_and_the_right_level(search: ComponentSearch) -> None:
    rng = np.random.default_rng(2)
    results = [search(2.0 * noise(rng), FIRST, np.ones(2)) for _ in range(20)]
    assert np.mean([r.level for r in results]) == pytest.approx(4.0, rel=0.05)
    assert np.mean([len(r.components) for r in results]) < 5.5  # 3.9 over many
    assert all(2 * c < 45 for r in results for c in r.components["f_statistic"])


def test_band_equals_components_plus_residual(
    search: ComponentSearch, observation: ObservationSettings, slow_grid: ResponseGrid
) -> None:
    """Subtraction is exact: the components' own responses rebuild what was removed."""
    from slotflow.response import frequency_basis

    rng = np.random.default_rng(3)
    band = noise(rng)
    add(band, source_at(rng, 100.2, observation), 40.0, observation)
    out = search(band, FIRST, np.ones(2))
    model = np.zeros((2, BINS + 256), dtype=complex)
    coarse = slow_grid.thinned(2)
    for c in out.components:
        # loud components are fitted, and so subtracted, with all slow samples
        grid = slow_grid if 2 * c["f_statistic"] > FINE_HEIGHT else coarse
        f0 = (FIRST + c["bin"]) / observation.duration
        intrinsic = np.array([[f0, c["fdot_t2"] / observation.duration**2, c["ra"], c["dec"]]])
        basis, first = frequency_basis(intrinsic, grid)
        low = int(first[0]) - FIRST + 128
        part = c["plus"] * basis[0, 0] + c["cross"] * basis[0, 1]
        model[:, low : low + grid.n] += part[:2]
    rebuilt = out.residual + model[:, 128 : 128 + BINS]
    assert np.abs(rebuilt - band).max() < 1e-3 * np.abs(band).max()


def test_no_data_gives_no_component(search: ComponentSearch) -> None:
    out = search(np.full((2, BINS), 1e-3, dtype=np.complex64), FIRST, np.ones(2), np.ones(2))
    assert len(out.components) == 0
    assert np.allclose(out.residual, 1e-3)


def test_bank_statistic_is_the_projection_onto_the_true_response(
    slow_grid: ResponseGrid, observation: ObservationSettings
) -> None:
    """At a grid point and a bin's centre, F is the least-squares projection by NumPy's lstsq."""
    grid = slow_grid.thinned(2)
    bank = make_bank(FIRST + 128, grid, 48, 33)
    rng = np.random.default_rng(4)
    band = noise(rng)
    out = np.empty((BINS, STEPS, 48), dtype=np.float32)
    bank.correlate(band, 0, BINS, out)
    from slotflow.response import frequency_basis

    for point, row in ((3, 128), (17, 60), (40, 5)):
        f0 = (FIRST + row) / observation.duration
        fdot = 0.1 / observation.duration**2
        basis, _ = frequency_basis(np.array([[f0, fdot, *bank.sky[point]]]), grid)
        columns = basis[0, :, :2, 32 - 16 : 32 + 17]
        low = row - 16
        cut = np.zeros((2, 33), dtype=complex)
        inside = slice(max(low, 0), low + 33)
        cut[:, inside.start - low :] = band[:, inside]
        matrix = columns.reshape(2, -1).T
        fit, *_ = np.linalg.lstsq(matrix, cut.ravel(), rcond=None)
        expected = np.linalg.norm(matrix @ fit) ** 2
        # the bank is made for the block's centre: responses change by 1% in 128 bins
        assert out[row, 0, point] == pytest.approx(expected, abs=0.01 * np.linalg.norm(cut) ** 2)


def test_sky_grid_covers_the_sphere() -> None:
    sky = sky_grid(320)
    directions = np.random.default_rng(5).normal(size=(300, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    ra, dec = np.arctan2(directions[:, 1], directions[:, 0]), np.arcsin(directions[:, 2])
    nearest = [separation(sky, np.array([a, d])).min() for a, d in zip(ra, dec, strict=True)]
    assert np.rad2deg(max(nearest)) < 10.0


def test_wrong_grid_is_refused(observation: ObservationSettings) -> None:
    with pytest.raises(ValueError, match="expected 128 slow samples; got 64"):
        ComponentSearch(response_grid(observation, 64), SETTINGS)
