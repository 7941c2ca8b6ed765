"""Where the command writes: results to standard output, progress to standard error."""

import typer
from rich.console import Console

# Tables that go to a file or a pipe are not folded to a terminal's width.
_FILE_WIDTH = 180


def out() -> Console:
    """Standard output, for tables."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


def say(text: str) -> None:
    """A result in words."""
    typer.echo(text)


def note(text: str) -> None:
    """What is being done now."""
    typer.echo(text, err=True)
