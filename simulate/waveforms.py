"""Source responses by jaxgb, the reference: the only module that imports it.

The simulation itself uses :mod:`slotflow.waveform`, a compiled kernel of the same formula, equal
to 1e-9 and 3.8 times as fast on one core.

jaxgb's ``sum_tdi`` piles a source that is cut at the high side into the last bin, and its T
channel has the wrong sign; so responses are taken one by one (``get_tdi``), T is set to
zero (it carries no signal by our choice) and they are summed here.
"""

from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from slotflow.config import ObservationSettings
from slotflow.simulate.orbits import orbits

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]
Int = NDArray[np.int64]


@lru_cache(maxsize=8)
def _compiled(settings: ObservationSettings, n: int) -> Any:
    """Return the jitted function sources (batch, 8) -> A, E and the first bins."""
    import jax
    from jaxgb.jaxgb import JaxGB

    if not jax.config.jax_enable_x64:
        raise RuntimeError("JAX must be in 64-bit mode for the phase of a year")
    generator = JaxGB(
        orbits(settings),
        t_obs=settings.duration,
        t0=settings.t0,
        n=n,
        window=("tukey", settings.tukey),
    )
    generation = {"1.5": 1.5, "2.0": 2.0}[settings.tdi_generation]

    def evaluate(sources: Any) -> Any:
        a, e, _ = generator.get_tdi(sources, tdi_generation=generation, tdi_combination="AET")
        return a, e, generator.get_kmin(sources[:, 0])

    return jax.jit(evaluate)


def jaxgb_response(
    sources: Float, settings: ObservationSettings, n: int = 256, batch: int = 64
) -> tuple[Complex, Int]:
    """Return each source's A, E, T response per Fourier bin; T is zero.

    Sources are padded to batches of one size: one compilation, and a source's numbers do
    not depend on how many others are asked for.

    Args:
        sources: (S, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
        settings: the observation.
        n: slow samples, and bins of a response.
        batch: sources evaluated at a time.

    Returns:
        ``(response, first)``: (S, 3, n) in fractional frequency x seconds, as
        ``dt rfft(window x)``, and (S,) int64, the bin of index 0.

    Raises:
        ValueError: sources of another shape.
    """
    sources = np.asarray(sources, dtype=np.float64)
    if sources.ndim != 2 or sources.shape[1] != 8:
        raise ValueError(f"expected sources of shape (S, 8); got {sources.shape}")
    evaluate = _compiled(settings, n)
    response = np.zeros((len(sources), 3, n), dtype=np.complex128)
    first = np.zeros(len(sources), dtype=np.int64)
    padded = np.empty((batch, 8))
    for start in range(0, len(sources), batch):
        part = sources[start : start + batch]
        padded[: len(part)] = part
        padded[len(part) :] = part[0]
        a, e, k = evaluate(padded)
        rows = slice(start, start + len(part))
        response[rows, 0] = np.asarray(a)[: len(part)]
        response[rows, 1] = np.asarray(e)[: len(part)]
        first[rows] = np.asarray(k)[: len(part)]
    return response, first


@numba.njit(cache=True)
def _accumulate(responses, firsts, first_bin, out):  # type: ignore[no-untyped-def]
    sources, channels, n = responses.shape
    bins = out.shape[1]
    for s in range(sources):
        shift = firsts[s] - first_bin
        low = max(0, -shift)
        high = min(n, bins - shift)
        for c in range(channels):
            for j in range(low, high):
                out[c, shift + j] += responses[s, c, j]


def accumulate(responses: Complex, firsts: Int, first_bin: int, bins: int) -> Complex:
    """Sum responses into the band ``first_bin .. first_bin + bins - 1``: (channels, bins).

    What falls outside the band is cut, on both sides.

    Args:
        responses: (S, channels, n).
        firsts: (S,) each one's first bin.
        first_bin: the band's first bin.
        bins: the band's width.
    """
    out = np.zeros((responses.shape[1], bins), dtype=np.complex128)
    _accumulate(np.ascontiguousarray(responses), firsts, first_bin, out)
    return out
