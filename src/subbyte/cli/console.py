"""Where the command writes: results to standard output, progress to standard error."""

import typer

from subbyte.errors import printable
from subbyte.report.console import PlainConsole

# Tables that go to a file or a pipe are not folded to a terminal's width.
_FILE_WIDTH = 180


def out() -> PlainConsole:
    """Return standard output, for tables."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=_FILE_WIDTH)


def say(text: str) -> None:
    """Print a result in words."""
    typer.echo(printable(text))


def note(text: str) -> None:
    """Print to standard error what is being done now, or what went wrong."""
    typer.echo(printable(text), err=True)
