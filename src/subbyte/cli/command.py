"""Commands that end in one clear message and an exit code, never in a traceback unless asked."""

import errno
import traceback
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from subbyte.cli.console import note
from subbyte.cli.failure import described
from subbyte.errors import SubbyteError

FAILED = 2
INTERRUPTED = 130  # as shells say it: 128 and the number of the signal


class Application(TyperGroup):
    """The command as a whole; `--debug` may stand anywhere among its arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        given, rest = args[:end], args[end:]
        others = [arg for arg in given if arg != "--debug"]
        return super().parse_args(ctx, ["--debug"] * (len(given) > len(others)) + others + rest)


class Command(TyperCommand):
    """A subcommand whose errors are told, not thrown."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt as interrupt:
            notes = getattr(interrupt, "__notes__", [])  # what is kept, and how to go on
            note("\n".join(notes) or "interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if getattr(error, "errno", None) == errno.EPIPE:
                raise
            if ctx.find_root().params.get("debug"):
                note("".join(traceback.format_exception(error)).rstrip())
                raise typer.Exit(FAILED) from None
            note(f"Error: {_message(error)}")
            raise typer.Exit(FAILED) from None


def _message(error: Exception) -> str:
    if isinstance(error, SubbyteError):
        return str(error)
    return f"{described(error)}; --debug shows the traceback"
