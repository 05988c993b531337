"""Token data without any simulation: components placed beside invented sources."""

import numpy as np

from slotflow.components import COMPONENT_DTYPE, PATCH, ComponentSet
from slotflow.tokencache import TokenData, standing_components, to_local_units
from slotflow.tokens import band_tokens

DURATION = 524_288 * 60.0
BINS = 256
FIRST = 47_000


def random_sources(
    rng: np.random.Generator, number: int, fmin: float, fmax: float, duration: float
) -> np.ndarray:
    """Sources all over the sky in the order of PARAMETERS, amplitude 1e-22."""
    return np.stack(
        [
            rng.uniform(fmin, fmax, number),
            rng.uniform(-0.1, 0.3, number) / duration**2,
            np.full(number, 1e-22),
            rng.uniform(0, 2 * np.pi, number),
            np.arcsin(rng.uniform(-1, 1, number)),
            rng.uniform(0, np.pi / 2, number),
            np.arccos(rng.uniform(-1, 1, number)),
            rng.uniform(0, 2 * np.pi, number),
        ],
        axis=-1,
    )


def component_set(rng: np.random.Generator, sources: np.ndarray, false: int) -> ComponentSet:
    """One component near each source, and ``false`` others."""
    n = len(sources) + false
    c = np.zeros(n, dtype=COMPONENT_DTYPE)
    other = random_sources(rng, n, (FIRST + 40) / DURATION, (FIRST + 216) / DURATION, DURATION)
    every = np.concatenate([sources, other[len(sources) :]])
    c["bin"] = every[:, 0] * DURATION - FIRST + rng.normal(size=n) * 0.03
    c["ra"] = np.mod(every[:, 3] + rng.normal(size=n) * 0.02, 2 * np.pi)
    c["dec"] = np.clip(every[:, 4] + rng.normal(size=n) * 0.02, -1.5, 1.5)
    c["fdot_t2"] = 0.1
    amplitude, cos = every[:, 2], np.cos(every[:, 6])
    right = -amplitude * (1 + cos) ** 2 * np.exp(1j * (2 * every[:, 5] - every[:, 7]))
    left = -amplitude * (1 - cos) ** 2 * np.exp(-1j * (2 * every[:, 5] + every[:, 7]))
    c["plus"], c["cross"] = (right + left) / 2, (right - left) / 2j
    c["f_statistic"] = np.where(np.arange(n) < len(sources), 300.0, 15.0)
    c["covariance"] = np.diag([0.03, 0.02, 0.02, 0.05]) ** 2
    c["second_ra"], c["second_dec"], c["second_loss"] = 1.0, 0.3, rng.exponential(30, n)
    c["patch"] = rng.exponential(1, (n, 2 * PATCH + 1))
    return ComponentSet(c, np.array([1.0, 1.1]), np.zeros((2, 0), dtype=np.complex64))


def token_data(seed: int, bands: int, capacity: int = 10, most: int = 4) -> TokenData:
    """``bands`` bands of 0..``most`` sources."""
    rng = np.random.default_rng(seed)
    rows = []
    for sample in range(bands):
        count = sample % (most + 1)
        sources = random_sources(
            rng, count, (FIRST + 40) / DURATION, (FIRST + 216) / DURATION, DURATION
        )
        tokens = band_tokens(
            component_set(rng, sources, int(rng.integers(0, 3))), FIRST, BINS, DURATION,
            (32.0, 224.0), capacity,
        )  # fmt: skip
        snr = np.full(most, np.nan)
        snr[:count] = 24.0
        local = np.zeros((most, 8))
        local[:, 0] = 128.0
        local[:count] = to_local_units(sources, FIRST, DURATION)
        component = np.full(most, -1)
        component[:count] = standing_components(
            tokens.reference[tokens.valid], sources, snr[:count], FIRST, DURATION
        )
        rows.append((*tokens, local, snr, count, component, sample, FIRST))
    return TokenData(*(np.stack(column) for column in zip(*rows, strict=True)))
