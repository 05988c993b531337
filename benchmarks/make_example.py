"""Make the example that ships: the known binaries, the Galaxy and the noise of one year.

./run python benchmarks/make_example.py --force
"""

import time
from pathlib import Path

import click

from slotflow.config import ObservationSettings

ROOT = Path(__file__).resolve().parents[1]


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "data" / "example.h5",
              show_default=True, help="File to write.")  # fmt: skip
@click.option("--catalogue", type=click.Path(path_type=Path),
              default=ROOT / "data" / "verification_binaries.csv", show_default=True,
              help="Sources to put in, beside the Galaxy.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=20350101, show_default=True,
              help="Of the Galaxy and the noise.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite the file.")
def main(output: Path, catalogue: Path, seed: int, force: bool) -> None:
    """Write one simulated year: verification binaries, the Galaxy above 0.5 mHz, noise (SciRDv1).

    The Galaxy is left as it was drawn. Single precision, compressed.
    """
    from slotflow.simulate.observation import (
        GalaxySettings,
        read_catalogue,
        simulate_observation,
    )

    begin = time.perf_counter()
    names, sources = read_catalogue(catalogue)
    with click.progressbar(length=1, label="Sources") as bar:

        def progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        summary = simulate_observation(
            output,
            ObservationSettings(),
            seed,
            sources,
            names,
            galaxy=GalaxySettings(truth_snr=3.0),
            compact=True,
            force=force,
            progress=progress,
        )
    click.echo(
        f"{output}: {output.stat().st_size / 1e6:.2f} MB, {summary.binaries} binaries of the"
        f" Galaxy, {summary.kept} sources in the truth, {time.perf_counter() - begin:.0f} s"
    )


if __name__ == "__main__":
    main()
