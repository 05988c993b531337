"""The compiled kernel of known sources against jaxgb, for each orbit."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slotflow.config import ObservationSettings
from slotflow.response import polarisation_coefficients, tdi2_factor
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.waveforms import jaxgb_response
from slotflow.waveform import response_ae
from tests.synthetic import random_sources

YEAR = ObservationSettings().duration
ORBITS = {
    "equal arms": {},
    "another phase and epoch": {"orbit_lambda1": 0.7, "orbit_m_init1": -2.1, "t0": 4.2e7},
    "Keplerian": {"orbit": "keplerian"},
    "other arms": {"arm_length": 2.49e9},
}


@pytest.mark.parametrize("name", ORBITS)
def test_kernel_equals_jaxgb(name: str) -> None:
    settings = ObservationSettings(**ORBITS[name])
    rng = np.random.default_rng(1)
    sources = random_sources(rng, 40, 1e-3, 2e-3, YEAR)
    sources[:, 0] = np.exp(rng.uniform(np.log(0.5e-3), np.log(8e-3), 40))
    sources[:3, 4] = [0.5 * np.pi, -0.5 * np.pi, 0.0]
    for n in (64, 256):
        expected, first = jaxgb_response(sources, settings, n)
        seen, start = response_ae(sources, response_grid(settings, n))
        np.testing.assert_array_equal(start, first)
        scale = np.abs(expected).max(axis=(1, 2), keepdims=True)
        assert (np.abs(seen - expected[:, :2]) / scale).max() < 1e-9


def test_tdi_2_is_jaxgbs() -> None:
    settings = ObservationSettings(tdi_generation="2.0")
    sources = random_sources(np.random.default_rng(2), 10, 1e-3, 2e-3, YEAR)
    expected, first = jaxgb_response(sources, settings, 256)
    seen, _ = response_ae(sources, response_grid(settings, 256))
    frequency = (first[:, None] + np.arange(256)) / settings.duration
    seen = seen * tdi2_factor(frequency, settings.arm_length)[:, None]
    assert np.abs(seen - expected[:, :2]).max() < 1e-9 * np.abs(expected).max()


def test_given_coefficients_replace_the_amplitudes() -> None:
    grid = response_grid(ObservationSettings(), 64)
    sources = random_sources(np.random.default_rng(3), 5, 1e-3, 2e-3, YEAR)
    one = response_ae(sources, grid)[0]
    d = polarisation_coefficients(sources)
    np.testing.assert_allclose(response_ae(sources, grid, 2j * d)[0], 2j * one, rtol=1e-12)
    assert response_ae(np.empty((0, 8)), grid)[0].shape == (0, 2, 64)
    with pytest.raises(ValueError, match="shape"):
        response_ae(sources[:, :7], grid)


DIGEST = """
import hashlib, numpy as np
from slotflow.response import ResponseGrid
from slotflow.waveform import response_ae
rng = np.random.default_rng(1)
grid = ResponseGrid(3e7, 0.0, np.arange(64) * 3e7 / 64, 1e11 * rng.normal(size=(3, 3, 64)), 2.5e9,
                    np.ones(64))
sources = rng.uniform(0.1, 1.0, (200, 8))
sources[:, 0] *= 2e-3
sources[:, 1] *= 1e-16
print(hashlib.sha256(response_ae(sources, grid)[0].tobytes()).hexdigest())
"""


def test_code_out_of_the_cache_gives_the_same_bits(tmp_path: Path) -> None:
    """Workers load what another process compiled: files must not depend on that."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, check=True, capture_output=True
        ).stdout
        for _ in range(2)
    }
    assert any(tmp_path.rglob("*.nbc"))
    assert len(digests) == 1
