"""Reading the files that settings name, so that the settings say everything by themselves."""

from pathlib import Path
from typing import Any

from slotflow.config import ObservationSettings, Preset
from slotflow.errors import InputError
from slotflow.manifest import file_sha256
from slotflow.noise_table import read_noise_table
from slotflow.simulate.orbits import mean_arm, orbits


def pinned(settings: ObservationSettings) -> ObservationSettings:
    """Return the settings with the noise table in them, and the orbit file's hash and mean arm.

    Settings that name no files, or were pinned before, are returned as they are.

    Raises:
        InputError: a file that cannot be used, or that is not the one of the settings.
    """
    update: dict[str, Any] = {}
    if settings.noise == "table" and settings.noise_table is None:
        update["noise_table"] = read_noise_table(settings.noise_file or "")
    if settings.orbit == "file" and settings.orbit_sha256 is None:
        orbits(settings)
        update["orbit_sha256"] = file_sha256(Path(settings.orbit_file or ""))
        update["arm_length"] = mean_arm(settings)
        if not 1e8 < update["arm_length"] < 1e11:
            raise InputError(
                f"{settings.orbit_file}: does not cover the observation, or has a mean arm of"
                f" {update['arm_length']!r} m"
            )
    return settings.model_copy(update=update) if update else settings


def pinned_preset(preset: Preset) -> Preset:
    """Return the preset with its observation :func:`pinned`."""
    observation = pinned(preset.observation)
    if observation is preset.observation:
        return preset
    return preset.model_copy(update={"observation": observation})
