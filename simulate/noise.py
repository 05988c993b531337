"""The model densities of :mod:`slotflow.noise` at a band's bins.

The noise itself is drawn there, without JAX, when training loads a band.
"""

from typing import NamedTuple

import numpy as np

from slotflow.config import ObservationSettings
from slotflow.noise import Float, model_psd


class BandPsd(NamedTuple):
    """Densities at the bins ``first_bin .. first_bin + n - 1``, each (3, n), 1/Hz."""

    first_bin: int
    instrument: Float
    total: Float


def band_psd(first_bin: int, bins: int, settings: ObservationSettings) -> BandPsd:
    """Return the model densities of A, E, T at consecutive bins, in the settings' generation.

    Raises:
        InputError: a bin outside the noise table.
        ValueError: a bin at or below zero frequency.
    """
    frequency = (first_bin + np.arange(bins)) / settings.duration
    return BandPsd(first_bin, *model_psd(frequency, settings))
