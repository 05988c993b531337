"""Commands killed at random moments and run again: is the data what an undisturbed run gives?

    ./run python benchmarks/kills.py [simulate|train|posterior|ablate|report ...] [--moments 20]

SIGKILL to the whole group of processes, at moments drawn from the seed, in turn in four folders;
then each folder's command is run to its end and its data are compared (tests/killing.py says
which). Prints one JSON line a command.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import click

COMMANDS = ("simulate", "train", "posterior", "ablate", "report")


@click.command()
@click.argument("commands", nargs=-1, type=click.Choice(COMMANDS))
@click.option("--moments", default=20)
@click.option("--folders", default=4)
@click.option("--seed", default=1)
def main(commands: tuple[str, ...], moments: int, folders: int, seed: int) -> None:
    """Kill the commands, all where none is named."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.killing import kill

    for command in commands or COMMANDS:
        with tempfile.TemporaryDirectory() as place:
            found = kill(command, Path(place), moments, folders, seed)
        asked = {"command": command, "moments": moments, "seed": seed}
        print(json.dumps(asked | dataclasses.asdict(found)), flush=True)


if __name__ == "__main__":
    main()
