"""Finalists: configurations that are recovered in full after the strategy has ended."""

from collections.abc import Sequence

from subbyte.tuning.candidate import Candidate
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.trial import Trial, best_of

_NEAR = 2.0  # times the tolerable loss: with more after quick recovery, full recovery rarely helps enough
_HOPEFUL = 2  # configurations that are not good enough after quick recovery
MOST_FINALISTS = _HOPEFUL + 1


def finalists(search: Search, trials: Sequence[Trial]) -> Proposals:
    """Propose for full recovery what is cheaper than the best and almost good enough, then the best itself.

    Args:
        search: what is wanted.
        trials: that the strategy has made.
    """
    best = best_of(list(trials))
    if best is None:
        return
    hopeful = [trial for trial in trials if trial.recovery == "quick" and _is_near(search, trial)]
    for trial in sorted(hopeful, key=lambda each: (each.loss, each.cost))[:_HOPEFUL]:
        if not best.met or trial.cost < best.cost:
            (full,) = yield [Candidate(trial.config, "full")]
            best = full if full.met else best
    if best.recovery == "quick":
        yield [Candidate(best.config, "full")]


def _is_near(search: Search, trial: Trial) -> bool:
    within = not trial.failed and not trial.excess
    return within and not trial.met and trial.loss <= _NEAR * search.accuracy.max_loss
