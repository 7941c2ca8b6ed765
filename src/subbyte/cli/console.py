"""Where the command writes: results to standard output, progress to standard error."""

import math
from typing import Any

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


def finite(value: Any) -> Any:
    """The same plain data, with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
