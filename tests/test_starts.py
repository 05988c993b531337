"""Where the local fit starts: places apart from each other, and what they are for."""

import numpy as np
import pytest

from slotflow.components import ComponentSearch
from slotflow.config import ObservationSettings, load_preset
from slotflow.parameters import F0
from slotflow.response import response
from slotflow.simulate.orbits import response_grid
from slotflow.starts import ANGLE, SECOND_MODE_ANGLE, SPAN, other_mode, separation, starts
from slotflow.templates import STEPS, TemplateBank, sky_grid
from tests.synthetic import random_sources

BINS = 128
POINTS = 48


def bank() -> TemplateBank:
    return TemplateBank(sky_grid(POINTS), np.full(POINTS, 0.1), np.zeros((2, 1), np.complex64), 33)


def planted(
    *places: tuple[float, int, float],
) -> tuple[np.ndarray, np.ndarray]:
    """A statistic of 1 with the given (bin, sky point, height), and its peaks."""
    statistic = np.ones((BINS, STEPS, POINTS), dtype=np.float32)
    for where, point, height in places:
        row, step = divmod(round(where * STEPS), STEPS)
        statistic[row, step, point] = height
    return statistic, statistic.max(axis=2)


def test_starts_are_the_high_places_apart_from_the_peak_best_first() -> None:
    sky = sky_grid(POINTS)
    far = int(np.argmax(separation(sky, sky[3])))
    statistic, peaks = planted(
        (60.0, 3, 100.0),  # the peak
        (60.5, 3, 90.0),  # its flank: the same place
        (60.5, far, 80.0),  # hidden behind its flank
        (64.0, 3, 70.0),
        (55.0, far, 75.0),
        (71.0, 7, 99.0),  # too far off
        (62.0, 9, 39.0),  # too low
    )
    found = starts(statistic, peaks, bank(), 60 * STEPS, 5)
    assert [x[0] for x in found] == [55.0, 64.0]
    assert np.array_equal(found[0][1:3], sky[far])
    assert found[0][3] == 0.1
    assert len(starts(statistic, peaks, bank(), 60 * STEPS, 1)) == 1


@pytest.mark.parametrize("row", [0, 1, BINS - 1])
def test_starts_at_the_edges_of_the_band(row: int) -> None:
    statistic, peaks = planted((row, 3, 100.0))
    rng = np.random.default_rng(row)
    statistic += rng.uniform(0, 90, statistic.shape).astype(np.float32) * (statistic < 100)
    peaks = statistic.max(axis=2)
    places = starts(statistic, peaks, bank(), row * STEPS, 64)
    assert places
    everyone = [(float(row), sky_grid(POINTS)[3]), *((x[0], x[1:3]) for x in places)]
    for i, (where, at) in enumerate(everyone):
        assert 0 <= where < BINS
        assert abs(where - row) <= SPAN + 0.5
        for other, place in everyone[:i]:
            apart = separation(at[None], place)[0] >= ANGLE
            assert apart or abs(where - other) >= 0.9


def test_other_mode_is_the_first_elsewhere_on_the_sky() -> None:
    near = 0.9 * SECOND_MODE_ANGLE
    a, b, c = (np.array([5.0, 0.0, dec, 0.1]) for dec in (0.0, near, -1.2 * SECOND_MODE_ANGLE))
    assert other_mode([a, b, c]) is c
    assert other_mode([a, b]) is None
    assert other_mode([a]) is None


def test_more_starts_find_the_right_place_at_high_frequency(
    observation: ObservationSettings,
) -> None:
    """At 6 mHz, SNR 25: a single start often ends bins away, several hardly ever do."""
    first = round(6e-3 * observation.duration) - BINS // 2
    rng = np.random.default_rng(8)
    sources = random_sources(rng, 40, 6e-3, 6.1e-3, observation.duration)
    sources[:, F0] = (first + rng.uniform(54, 74, len(sources))) / observation.duration
    h, firsts = response(sources, response_grid(observation, 256))
    hits = {}  # within what f0 and fdot leave open together
    for number in (0, 6):
        settings = load_preset("high").components.model_copy(update={"starts": number})
        search = ComponentSearch(response_grid(observation, 256), settings)
        noise = np.random.default_rng(9)
        hits[number] = 0
        for one, low, source in zip(h, firsts - first, sources, strict=True):
            z = noise.normal(size=(2, BINS)) + 1j * noise.normal(size=(2, BINS))
            a, b = max(int(low), 0), min(int(low) + 256, BINS)
            scale = 25.0 / np.sqrt(2 * (np.abs(one[:2]) ** 2).sum())
            band = z / np.sqrt(2)
            band[:, a:b] += scale * one[:2, a - low : b - low]
            found = search(band.astype(np.complex64), first, np.ones(2), np.ones(2)).components
            best = found[np.argmax(found["f_statistic"])]
            hits[number] += abs(best["bin"] - (source[F0] * observation.duration - first)) < 1.5
    assert hits[6] >= 39
    assert hits[0] < hits[6]
