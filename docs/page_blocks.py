"""The fenced blocks of the documentation's pages, and what can be checked without running them.

The word after a fence's language says what becomes of the block:

    sh run, python run           run, all blocks of a page in order in one new folder
    sh not-run="why"             not run (a cluster, another program); commands are parsed
    yaml file="prior.yaml"       written to that file (any language)
    text output                  must be in what the block before printed: ``...`` stands for
                                 anything, numbers may differ by 2% or two units of the last digit
    <!-- run ... -->             shell commands that the reader does not see (stand-ins for files)

Blocks of sh and python without such a word are errors. Every ``slotflow`` command line, run or
not, is checked against the commands and options that there are.
"""

import copy
import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import click

FENCE = re.compile(r'```(\w*)[ \t]*(?:(run|output)|(not-run|file)="([^"]+)")?[^\n]*')
COMMAND = re.compile(r"(?:- )?(?:run: )?(?:\w+=\S+ +|srun +|\./run +)*slotflow (?P<rest>.*)")
INLINE = re.compile(r"`(?:\./run )?slotflow ([a-z][^`]*)`")
NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


class BlockError(Exception):
    """What is wrong with a block."""


class Block(NamedTuple):
    """A fenced block: ``line`` is that of the fence, ``value`` the reason or the file's name."""

    page: Path
    line: int
    language: str
    mark: str
    value: str
    text: str

    def error(self, reason: str, line: int = 0) -> BlockError:
        return BlockError(f"{self.page}:{self.line + line}: {reason}")


def blocks(page: Path) -> Iterator[Block]:
    """Yield a page's blocks and hidden commands, in order.

    Raises:
        BlockError: one that is not marked, or not closed.
    """
    opened: Block | None = None
    text: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if opened is None:
            match = FENCE.fullmatch(line)
            if match:
                mark = match[2] or match[3] or ""
                opened, text = Block(page, number, match[1], mark, match[4] or "", ""), []
                if opened.language in ("sh", "python") and not mark:
                    raise opened.error("neither run nor not-run")
            elif line == "<!-- run":
                opened, text = Block(page, number, "sh", "run", "hidden", ""), []
        elif line == ("-->" if opened.value == "hidden" else "```"):
            yield opened._replace(text="".join(row + "\n" for row in text))
            opened = None
        elif FENCE.fullmatch(line):
            raise opened.error("not closed before the next one")
        else:
            text.append(line)
    if opened is not None:
        raise opened.error("not closed")


def check(block: Block) -> None:
    """Check a block without running it.

    Raises:
        BlockError: a slotflow command that does not exist so, or Python that is none.
    """
    for row in re.finditer(r"(?:.*\\\n)*.+", block.text):
        if match := COMMAND.match(row[0].replace("\\\n", " ").strip()):
            line = 1 + block.text.count("\n", 0, row.start())
            try:
                given = list(words(match["rest"]))
            except ValueError as error:
                raise block.error(f"{match[0]}: {error}", line) from error
            parse(block, given, line)
    if block.language == "python":
        try:
            compile(block.text, str(block.page), "exec")
        except SyntaxError as error:
            raise block.error(str(error)) from error


def words(command: str) -> Iterator[str]:
    """Yield a command line's words as a shell has them, up to a pipe, redirection or comment."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for word in lexer:
        if word and set(word) <= set("();<>|&"):
            return
        yield word


@lru_cache(maxsize=1)
def commands() -> click.Group:
    """Return a copy of all commands, without the checks of what is given (of files, say)."""
    from slotflow.cli.main import group

    copied = copy.deepcopy(group)
    known: list[click.Command] = [copied]
    for command in known:
        for parameter in command.params:
            parameter.callback = None
        if isinstance(command, click.Group):
            known += command.commands.values()
    return copied


def parse(block: Block, arguments: list[str], line: int) -> None:
    """Parse a command line as slotflow does.

    Raises:
        BlockError: a command or an option that does not exist, or a value of the wrong type.
    """
    command: click.Command = commands()
    context: click.Context | None = None
    name = "slotflow"
    try:
        while True:
            context = command.make_context(name, list(arguments), parent=context)
            rest = [*context._protected_args, *context.args]
            if not isinstance(command, click.Group) or not rest:
                return
            found, child, arguments = command.resolve_command(context, rest)
            if child is None or found is None:
                raise click.UsageError(f"no command {rest[0]!r}")
            name, command = found, child
    except click.ClickException as error:
        raise block.error(f"{shlex.join(arguments)}: {error.format_message()}", line) from error


def check_text(page: Path) -> None:
    """Check the commands and options of the `slotflow ...` that stand in a page's text.

    Raises:
        BlockError: one that does not exist.
    """
    group = commands()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        for match in INLINE.finditer(line):
            command: click.Command = group
            for word in match[1].split():
                option = word.partition("=")[0]
                known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
                if isinstance(command, click.Group) and word in command.commands:
                    command = command.commands[word]
                elif command is group or (word.startswith("-") and option not in known):
                    raise BlockError(f"{page}:{number}: {match[0]}: {word} does not exist")


def compare(block: Block, printed: str) -> None:
    """Raise BlockError where a line that the page shows was not printed, in this order."""
    rest = printed.splitlines()
    for number, shown in enumerate(block.text.splitlines(), start=1):
        if not shown.strip():
            continue
        parts = re.split(rf"({NUMBER}|\.\.\.|\s+)", shown.strip())
        pattern = re.compile("".join(_pattern(part) for part in parts))
        wanted = [part for part in parts if re.fullmatch(NUMBER, part)]
        for place, line in enumerate(rest):
            match = pattern.fullmatch(line.strip())
            if match and all(map(_near, wanted, match.groups())):
                rest = rest[place + 1 :]
                break
        else:
            raise block.error(f"not printed: {shown.strip()}\nbut:\n{printed[-2000:]}", number)


def _pattern(part: str) -> str:
    if re.fullmatch(NUMBER, part):
        return f"({NUMBER})"
    return ".*" if part == "..." else r"\s+" if part.isspace() else re.escape(part)


def _near(shown: str, found: str) -> bool:
    mantissa, _, power = shown.partition("e")
    decimals = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(power or 0) - decimals) if decimals else 0.0
    return abs(float(shown) - float(found)) <= max(2.001 * unit, 0.02 * abs(float(shown)))
