"""What a search says while it runs: one line on standard error, where that is a terminal."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean

from rich.console import Console
from rich.live import Live
from rich.text import Text

from subbyte.report.console import PlainConsole
from subbyte.report.tuning.words import duration, loss_text, objective_text
from subbyte.tuning import Accuracy, Goal, Limits, Trial, best_of

_LATEST = 10  # trials by which the time of the next is judged

Clock = Callable[[], float]


@contextmanager
def shown_live(
    accuracy: Accuracy, goal: Goal, limits: Limits, console: Console | None = None
) -> Iterator["LiveSearch"]:
    """Show a search while it runs.

    Args:
        accuracy: what may be lost.
        goal: what is made small.
        limits: when it ends.
        console: standard error, where left out; nothing is shown where it is no terminal.

    Yields:
        what is to be told of progress and of trials.
    """
    console = console or PlainConsole(stderr=True)
    if not console.is_terminal:
        yield LiveSearch(accuracy, goal, limits, lambda line: None)
        return
    # Drawn when there is news alone: no thread runs beside the evaluation, and what that prints stays whole.
    with Live(
        console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as shown:
        yield LiveSearch(
            accuracy,
            goal,
            limits,
            lambda line: shown.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True),
        )


@dataclass
class LiveSearch:
    """Puts news of a search into a line.

    Args:
        accuracy, goal, limits: of the search.
        show: takes the line.
        clock: in seconds, of which `limits.started` is one.
    """

    accuracy: Accuracy
    goal: Goal
    limits: Limits
    show: Callable[[str], None]
    clock: Clock = time.monotonic
    _took: list[float] = field(default_factory=list)
    _last: float = 0.0
    _begun: tuple[str, float] = ("", 0.0)

    def __post_init__(self) -> None:
        self._last = self.clock()

    def progress(self, what: str, share: float) -> None:
        """Something beside the trials is done to this share."""
        now = self.clock()
        if self._begun[0] != what:
            self._begun = (what, self._last)
        spent = now - self._begun[1]
        left = f", about {duration(spent * (1 - share) / share)} left" if 0 < share < 1 else ""
        self._last = now
        self.show(f"{what}: {share:.0%}{left}")

    def watch(self, trials: Sequence[Trial]) -> None:
        """A trial has ended."""
        now = self.clock()
        # One that an earlier run made comes at once, and says nothing of how long the next takes but by its record.
        self._took.append(max(now - self._last, trials[-1].seconds))
        self._last = now
        self.show(f"{self._so_far(trials)}; {self._best(trials)}; {self._time_left(len(trials))}")

    def _so_far(self, trials: Sequence[Trial]) -> str:
        failed = sum(trial.failed for trial in trials)
        return f"{len(trials)} of {self.limits.max_trials} trials" + (f", {failed} failed" if failed else "")

    def _best(self, trials: Sequence[Trial]) -> str:
        best = best_of(list(trials))
        most = loss_text(self.accuracy.max_loss, self.accuracy)
        if best is None:
            return f"none that worked yet (loss of at most {most} wanted)"
        figures = ", ".join(f"{name} {objective_text(name, best.objectives[name])}" for name in self.goal.names)
        said = "best" if best.met else "none good enough yet, nearest"
        return f"{said}: {figures}, loss {loss_text(best.loss, self.accuracy)} of at most {most}"

    def _time_left(self, count: int) -> str:
        """Of both limits that which comes first; a strategy may be done sooner."""
        left = (self.limits.max_trials - count) * fmean(self._took[-_LATEST:])
        if self.limits.timeout is not None:
            left = min(left, self.limits.started + self.limits.timeout - self.clock())
        return f"up to about {duration(max(left, 0.0))} left"
