"""What a training says while it runs: a line for each epoch, and in a terminal one that follows the steps."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

from subbyte.report.console import PlainConsole
from subbyte.report.tuning.words import duration
from subbyte.training import Epoch, Progress

_EVERY = 0.1  # seconds between two drawings


@contextmanager
def shown_live(console: Console | None = None) -> Iterator[Callable[[Progress], None]]:
    """Show a training while it runs.

    Args:
        console: standard error, where left out; the line of the steps is shown where it is a terminal.

    Yields:
        what is to be told of progress.
    """
    console = console or PlainConsole(stderr=True)
    told = EpochLines(lambda text: console.print(Text(text), soft_wrap=True))
    if not console.is_terminal:
        yield told.of
        return
    # Drawn when there is news alone: no thread runs beside the training, and what user code prints stays whole.
    with Live(
        console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as shown:
        line = TrainingLine()
        drawn = 0.0

        def watch(progress: Progress) -> None:
            nonlocal drawn
            told.of(progress)  # above the line that is drawn anew
            text = line.of(progress)
            if time.monotonic() - drawn > _EVERY:
                drawn = time.monotonic()
                shown.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

        yield watch


@dataclass
class EpochLines:
    """Says of each epoch that ends, once, what it was.

    Args:
        show: takes the line.
    """

    show: Callable[[str], None]
    _said: int | None = None

    def of(self, progress: Progress) -> None:
        """Epochs of a training that is taken up were said before it was interrupted."""
        if self._said is None:
            self._said = len(progress.history)
        for epoch in progress.history[self._said :]:
            self.show(epoch_line(epoch, progress.epochs))
        self._said = len(progress.history)


def epoch_line(epoch: Epoch, epochs: int) -> str:
    """Loss, learning rate, metric and time of an epoch."""
    metric = "" if epoch.metric is None else f", metric {epoch.metric:.4g}"
    return (
        f"epoch {epoch.number} of {epochs}: loss {epoch.loss:.4g}, learning rate {epoch.learning_rate:.3g}{metric}, "
        f"{duration(epoch.seconds)}"
    )


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
