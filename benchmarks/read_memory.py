"""Resident memory and time to read a long file and make its spectrum.

    ./run python benchmarks/read_memory.py [--layout sangria|radler|mojito] [--gaps] [--compress]

Writes a file of noise with 5 s between samples (a year: 6,291,456 samples) with h5py alone.
Another process then reads it, without being told the TDI generation unless the layout says it, and
makes the spectrum up to 2.2 mHz, as ``slotflow posterior`` does: its peak is the figure. Prints one
JSON line.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

SAMPLES = 6_291_456
DT = 5.0
FMAX = 2.2e-3
TUKEY = 0.05


def write(path: Path, layout: str, gaps: bool, compress: bool) -> None:
    """Write noise of TDI 1.5 (2 in Mojito), in fractional frequency."""
    import h5py
    import numpy as np
    import scipy.fft

    from slotflow.channels import aet_to_xyz
    from slotflow.noise import total_psd

    rng = np.random.default_rng(1)
    generation = "2.0" if layout == "mojito" else "1.5"
    frequency = np.maximum(np.arange(SAMPLES // 2 + 1) / (SAMPLES * DT), 1e-5)
    spectrum = rng.standard_normal((3, frequency.size, 2)).view(np.complex128)[..., 0]
    spectrum *= np.sqrt(0.25 * SAMPLES * DT * total_psd(frequency, tdi_generation=generation))
    xyz = aet_to_xyz(scipy.fft.irfft(spectrum, n=SAMPLES) / DT)
    if gaps:
        step, length = int(12.5 * 86400 / DT), int(7 * 3600 / DT)
        for begin in range(step // 2, SAMPLES, step):
            xyz[:, begin : begin + length] = np.nan
    times = DT * np.arange(SAMPLES)
    options = {"compression": "gzip", "shuffle": True, "chunks": True} if compress else {}
    with h5py.File(path, "w") as file:
        if layout == "sangria":
            rows = np.zeros((SAMPLES, 1), dtype=[(name, "<f8") for name in "tXYZ"])
            for name, column in zip("tXYZ", (times, *xyz), strict=True):
                rows[name][:, 0] = column
            file.create_dataset("obs/tdi", data=rows, **options)
        elif layout == "radler":
            rows = np.stack([times, *xyz], axis=-1)
            file.create_dataset("H5LISA/PreProcess/TDIdata", data=rows, **options)
        else:
            file.attrs["laser_frequency"] = 2.816e14
            for name, column in zip(("X2", "Y2", "Z2"), 2.816e14 * xyz, strict=True):
                file.create_dataset(f"tdis/{name}", data=column, compression="lzf")
            flags = np.isnan(xyz[0]).astype(np.int64)
            file.create_dataset("tdis/tdi_flags", data=flags, compression="lzf")
            sampling = {"t0": 0.0, "dt": DT, "size": SAMPLES}
            file.create_group("tdis/sampling").attrs.update(sampling)


def read(path: Path) -> dict[str, object]:
    """Read the file and make the spectrum; return what it took."""
    import scipy.fft  # noqa: F401  so that its import is not counted

    from slotflow.readers import read_observation
    from slotflow.spectrum import spectrum

    before = _peak()
    begin = time.perf_counter()
    observation = read_observation(path)
    middle = time.perf_counter()
    after_reading = _peak()
    result = spectrum(observation, SAMPLES * DT, TUKEY, FMAX)
    end = time.perf_counter()
    return {
        "layout": observation.layout,
        "samples": observation.tdi.shape[1],
        "file_mb": round(path.stat().st_size / 1e6),
        "generation": observation.generation,
        "bins": result.data.shape[1],
        "gap_fraction": round(result.gap_fraction, 4),
        "read_s": round(middle - begin, 2),
        "spectrum_s": round(end - middle, 2),
        "peak_memory_mb": _peak(),
        "peak_after_reading_mb": after_reading,
        "peak_of_imports_mb": before,
    }


def _peak() -> int:
    """Return this process's peak resident memory, MB."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 10**6


@click.command()
@click.option("--layout", type=click.Choice(["sangria", "radler", "mojito"]), default="sangria")
@click.option("--gaps", is_flag=True, help="Seven hours every 12.5 days, as in Spritz.")
@click.option("--compress", is_flag=True, help="gzip and shuffle; Mojito has LZF anyway.")
@click.option("--write", "written", type=click.Path(path_type=Path), default=None, hidden=True)
@click.option("--read", "file", type=click.Path(path_type=Path), default=None, hidden=True)
def main(layout: str, gaps: bool, compress: bool, written: Path | None, file: Path | None) -> None:
    """Measure peak memory and time of reading a year at 5 s."""
    if written is not None:
        write(written, layout, gaps, compress)
    elif file is not None:
        click.echo(json.dumps(read(file)))
    else:
        # Both by others: a process begins with its parent's peak
        with tempfile.TemporaryDirectory(prefix="slotflow-read-") as folder:
            path = str(Path(folder) / "year.h5")
            command = [sys.executable, *sys.argv]
            subprocess.run([*command, "--write", path], check=True)
            done = subprocess.run([*command, "--read", path], check=True, stdout=subprocess.PIPE)
            click.echo(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
