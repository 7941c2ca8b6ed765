"""What a training says while it runs: one line on standard error, where that is a terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

from subbyte.report.tuning.words import duration
from subbyte.training import Progress

_EVERY = 0.1  # seconds between two drawings


@contextmanager
def shown_live(console: Console | None = None) -> Iterator[Callable[[Progress], None]]:
    """Show a training while it runs.

    Args:
        console: standard error, where left out; nothing is shown where it is no terminal.

    Yields:
        what is to be told of progress.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: None
        return
    # Drawn when there is news alone: no thread runs beside the training, and what user code prints stays whole.
    with Live(
        console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as shown:
        line = TrainingLine()
        drawn = 0.0

        def watch(progress: Progress) -> None:
            nonlocal drawn
            text = line.of(progress)
            if time.monotonic() - drawn > _EVERY:
                drawn = time.monotonic()
                shown.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

        yield watch


@dataclass
class TrainingLine:
    """Puts where a training is into words.

    Args:
        clock: in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _first: tuple[int, float] | None = None

    def of(self, progress: Progress) -> str:
        """Epoch, step, loss, the last metric, and how long the rest will take at the speed so far."""
        now = self.clock()
        if self._first is None:
            self._first = (progress.step, now)
        taken = progress.step - self._first[0]
        parts = [
            f"epoch {progress.epoch} of {progress.epochs}, step {progress.step:,} of {progress.steps:,}",
            f"loss {progress.loss:.4g}",
        ]
        if progress.history and progress.history[-1].metric is not None:
            parts.append(f"metric {progress.history[-1].metric:.4g} after epoch {progress.history[-1].number}")
        if taken:
            left = (progress.steps - progress.step) * (now - self._first[1]) / taken
            parts.append(f"about {duration(left)} left")
        return "; ".join(parts)
