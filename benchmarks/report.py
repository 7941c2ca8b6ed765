"""What a benchmark prints, and the same as markdown for `results/`."""

import argparse
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import subbyte

RESULTS = Path(__file__).parent / "results"


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with what every benchmark takes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help="few samples: a smoke run, not written to results/")
    return made


class Report:
    """Prints tables and goals as they come; `save` writes them.

    Args:
        name: of the markdown file.
        title: its heading.
        quick: print only, since it was not the whole benchmark.
    """

    def __init__(self, name: str, title: str, *, quick: bool = False) -> None:
        self.name = name
        self.quick = quick
        self.lines = [f"# {title}", ""]
        self.console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
        self.console.print(f"[bold]{title}[/bold]{' (in part: not written)' if quick else ''}")

    def text(self, sentence: str) -> None:
        """A paragraph."""
        self.console.print(sentence, markup=False)
        self.lines += [*self._gap(), sentence, ""]

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table, the first column to the left and the others to the right."""
        shown = Table(title=title, title_justify="left")
        for index, column in enumerate(columns):
            shown.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            shown.add_row(*row)
        self.console.print(shown)
        rule = ["---", *["---:"] * (len(columns) - 1)]
        cells = [_row(columns), _row(rule), *map(_row, rows)]
        self.lines += [*self._gap(), f"## {title}", "", *cells, ""]

    def goal(self, wanted: str, got: str, *, met: bool) -> None:
        """What was to be reached, and what was."""
        line = f"{'met' if met else 'FELL SHORT'}: {wanted}: {got}"
        self.console.print(line, style="green" if met else "red", markup=False)
        self.lines += [f"* **{'met' if met else 'fell short'}**: {wanted}: {got}"]

    def _gap(self) -> list[str]:
        """The blank line that ends a list of goals."""
        return [""] if self.lines[-1] else []

    def save(self) -> None:
        """Write `results/<name>.md`, unless this is a quick run."""
        self.console.print(environment(), style="dim", markup=False)
        if self.quick:
            return
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.md"
        path.write_text(
            "\n".join([*self.lines, *self._gap(), f"Run as `{_command()}` on {environment()}.", ""]), "utf8"
        )
        self.console.print(f"written: {path.parent.name}/{path.name}")


def environment() -> str:
    """The machine and the versions, without names that identify it."""
    return (
        f"{_processor()}, {torch.get_num_threads()} threads ({torch.backends.cpu.get_cpu_capability()}); "
        f"{platform.system()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"subbyte {subbyte.__version__}"
    )


def _command() -> str:
    """As anybody may run it: where things lie on this machine is left out."""
    arguments = ["PATH" if Path(argument).is_absolute() else argument for argument in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
