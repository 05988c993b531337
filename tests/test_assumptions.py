"""slotflow.assumptions: gaps that the model knows, or does not; levels that cannot be used."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slotflow.assumptions import check_level, gap_notes, outlying_notes
from slotflow.config import GapSettings
from slotflow.errors import InputError
from slotflow.readers import Observation
from slotflow.results import TileRecord
from slotflow.spectrum import Spectrum
from tests.chain import untrained_model
from tests.layouts import white


def _observation(missing: int) -> Observation:
    valid = np.arange(1000) >= missing
    return Observation(white(1000), 60.0, 0.0, "1.5", Path("x.h5"), valid=valid)


def test_gaps_are_noted_where_the_model_does_not_know_them() -> None:
    model = untrained_model()
    settings = model.preset.observation.model_copy(update={"gaps": GapSettings(random_rate=3.0)})
    with_gaps = replace(model, preset=model.preset.model_copy(update={"observation": settings}))
    for data in (_observation(123), Spectrum(np.zeros((3, 9), complex), 1.0, 1.0, 0.123)):
        (note,) = gap_notes(data, model)
        assert note.startswith("12.3% of the data lie in gaps, and the model was trained without")
        assert "out of distribution" in note
        assert gap_notes(data, with_gaps) == ()
    for data in (
        _observation(0),
        replace(_observation(0), valid=None),
        Spectrum(np.zeros((3, 9), complex), 1.0, 1.0),
    ):
        assert gap_notes(data, model) == ()


@pytest.mark.parametrize("level", [0.0, np.nan, np.inf])
def test_levels_that_cannot_be_divided_out(level: float) -> None:
    frequency = np.array([1e-3, 1.1e-3])
    check_level(Path("x.h5"), np.array([1.0, 0.1]), frequency)
    with pytest.raises(InputError, match=r"x\.h5: channel E, 1\.0.* Hz: noise level"):
        check_level(Path("x.h5"), np.array([1.0, level]), frequency)


def test_bands_outside_the_training_distribution_are_named() -> None:
    scores = (0.2, 1.5, None, 3.0, 1.1, 1.2, 1.3)
    tiles = [
        TileRecord(i, 1e-3 + 1e-5 * i, 1e-3 + 1e-5 * (i + 1), 1.0, 1.0, 1, 1.0, score,
                   None if score is None else 0.1)
        for i, score in enumerate(scores)
    ]  # fmt: skip
    (note,) = outlying_notes(tiles)
    assert note.startswith("5 of 6 bands are outside the training distribution (score above 1")
    # the farthest first
    assert "from 1.0300 mHz 3.00, from 1.0100 mHz 1.50" in note
    assert "and 1 more" in note
    assert "out of distribution" in note
    assert outlying_notes(tiles[:1]) == ()
    assert outlying_notes([tile._replace(outlying=None) for tile in tiles]) == ()
