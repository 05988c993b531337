"""Same seed, same numbers; of posteriors, whatever the number of threads, but for the last digits.

The commands compute with one thread, so that results are the same on every machine; whoever calls
the library may have set another number. That neither workers, batches nor a break change a bit is
in test_posterior_processes.py, test_posterior.py, test_dataset.py, test_train.py and
test_parallel.py.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from slotflow.posterior import posterior
from slotflow.response import ResponseGrid
from slotflow.results import Result
from slotflow.train import Trainer
from tests.chain import example_observation, untrained_model
from tests.synthetic import token_data
from tests.test_train import preset

STEPS, BATCH = 2, 32
LOW, HIGH = 1.94e-3, 1.942e-3


@pytest.fixture(autouse=True)
def _one_thread_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained(folder: Path, grid: ResponseGrid) -> dict[str, NDArray[np.float32]]:
    torch.set_num_threads(1)
    trainer = Trainer(preset(STEPS * BATCH), token_data(2, 160), grid, folder)
    trainer.run()
    assert trainer.step == STEPS
    return {name: value.numpy() for name, value in trainer.network.state_dict().items()}


def test_training(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    """With one thread, which the commands train with, bit for bit.

    Not so across numbers of threads: Adam makes steps of their usual size of a gradient that is
    rounding alone, as that of a bias which adds to all the scores of a softmax.
    """
    one, again = (trained(tmp_path / f"{n}", slow_grid) for n in range(2))
    for name, value in one.items():
        np.testing.assert_array_equal(value, again[name], err_msg=name)


def sampled(threads: int) -> Result:
    torch.set_num_threads(threads)
    return posterior(example_observation(), untrained_model(), fmin=LOW, fmax=HIGH, samples=200)


def test_posterior() -> None:
    one, again, two = sampled(1), sampled(1), sampled(2)
    assert len(one.sources) == len(two.sources) > 0
    for a, b, c in zip(one.sources, again.sources, two.sources, strict=True):
        np.testing.assert_array_equal(a.samples, b.samples)
        assert (a.first_bin, a.slot) == (c.first_bin, c.slot)
        spread = a.samples.std(axis=0)
        assert (spread > 0).all()
        assert (np.abs(c.samples - a.samples) <= 1e-6 * np.maximum(spread, 1e-300)).all()
