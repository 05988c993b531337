"""LISA physics: orbits, waveforms, the Galaxy, noise, training sets and observations.

Importing this package puts JAX into 64-bit mode, the one place where that is done: in 32
bits the phase of a year is wrong by percent.
"""

import jax

jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
