"""Small files in the layouts of the large ones that users have: the example that ships, rewritten.

``python stand_ins.py sangria|spritz FILE``. Pages name the files as the challenges do.
"""

import shutil
import sys
from importlib import resources
from pathlib import Path

import h5py
import numpy as np
import scipy.fft

from slotflow.response import tdi2_factor

GAP, SPACING = 420, 17_280  # samples of a minute: 7 hours every 12 days


def sangria(path: Path) -> None:
    """Write a file that says as little about itself as LDC2 Sangria."""
    shutil.copy(Path(str(resources.files("slotflow.data"))) / "example.h5", path)
    with h5py.File(path, "r+") as file:
        for name in set(file) - {"obs", "sky"}:
            del file[name]
        for item in (file, file["obs"], file["obs/tdi"]):
            for name in list(item.attrs):
                del item.attrs[name]


def spritz(path: Path) -> None:
    """Write TDI 2 with planned gaps (NaN), beside a series without, as LDC2 Spritz."""
    sangria(path)
    with h5py.File(path, "r+") as file:
        rows = file["obs/tdi"][()]
        dt = float(rows["t"].flat[1] - rows["t"].flat[0])
        factor = tdi2_factor(scipy.fft.rfftfreq(len(rows), dt), 2.5e9)
        for name in "XYZ":
            row = scipy.fft.rfft(rows[name].ravel().astype(np.float64))
            rows[name] = scipy.fft.irfft(row * factor, n=len(rows)).reshape(rows[name].shape)
        file["clean/tdi"] = rows[:10]
        begins = np.arange(SPACING // 2, len(rows) - GAP, SPACING)
        for name in "XYZ":
            rows[name][(begins[:, None] + np.arange(GAP)).ravel()] = np.nan
        del file["obs/tdi"]
        file["obs/tdi"] = rows


if __name__ == "__main__":
    {"sangria": sangria, "spritz": spritz}[sys.argv[1]](Path(sys.argv[2]))
