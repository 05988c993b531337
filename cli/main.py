"""The command group, and how errors reach the user: one line, exit code 2, no traceback."""

import os
import sys
from collections.abc import Sequence

import click

from slotflow import __version__
from slotflow.cli.ablate import ablate
from slotflow.cli.common import error_line
from slotflow.cli.posterior import posterior
from slotflow.cli.report import report
from slotflow.cli.simulate import simulate
from slotflow.cli.train import train
from slotflow.errors import SlotflowError, StoppedError

STOPPED = 75  # EX_TEMPFAIL: to be run again

CONTEXT = {
    "auto_envvar_prefix": "SLOTFLOW",
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "show_default": True,
}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="slotflow")
def group() -> None:
    """Posteriors for every Galactic binary in LISA's data.

    Every option can also be given in the environment: SLOTFLOW_POSTERIOR_SEED=3.

    \b
    Example:
      slotflow posterior                    the example that ships
      slotflow posterior input.h5           your data
      slotflow simulate                     bands to train on
      slotflow train                        a model of your own
      slotflow report                       are its posteriors right?
    """


for command in (simulate, train, posterior, report, ablate):
    group.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0: done; 1: a condition of a report holds; 2: something given cannot be used; 75: a run that
    was asked to stop and goes on when called again; 130: interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = group.main(args=given, prog_name="slotflow", standalone_mode=False, obj=given[:])
    except StoppedError as error:
        click.echo(f"slotflow: {error}", err=True)
        return STOPPED
    except SlotflowError as error:
        return _fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "slotflow"
        return _fail(f"{error.format_message()} (see {where} --help)")
    except click.ClickException as error:
        return _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        click.echo("slotflow: interrupted", err=True)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, a permission: nothing that a traceback would explain
        click.echo(error_line(error), err=True)
        return 2
    return code if isinstance(code, int) else 0


def _fail(message: str) -> int:
    """Print one line, also where the message has more."""
    click.echo(f"slotflow: error: {' '.join(message.split())}", err=True)
    return 2


def main() -> None:
    """Entry point of the command ``slotflow``."""
    sys.exit(run())


if __name__ == "__main__":
    main()
