"""Finalists: configurations that are recovered in full after the strategy has ended."""

from collections.abc import Sequence

from subbyte.tuning.candidate import Candidate
from subbyte.tuning.pareto import front
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.trial import Trial, best_of

_NEAR = 3.0  # times the tolerable loss: with more after quick recovery, full recovery rarely helps enough
_HOPEFUL = 2  # configurations that are not good enough after quick recovery
MOST_FINALISTS = _HOPEFUL + 1


def finalists(search: Search, trials: Sequence[Trial]) -> Proposals:
    """Propose for full recovery what is cheaper than the best and almost good enough, then the best itself.

    Of those to which no other is as good in loss and cost, the middle one comes first: if full recovery makes it good
    enough, a cheaper one follows, otherwise a dearer one.

    Args:
        search: what is wanted.
        trials: that the strategy has made.
    """
    best = best_of(list(trials))
    if best is None:
        return
    near = [trial for trial in trials if trial.recovery == "quick" and _is_near(search, trial)]
    hopeful = front([trial for trial in near if not best.met or trial.cost < best.cost], lambda trial: trial.cost)
    first, last = 0, len(hopeful)
    for _ in range(_HOPEFUL):
        if first == last:
            break
        middle = (first + last) // 2
        (full,) = yield [Candidate(hopeful[middle].config, "full")]
        if full.met:
            best, last = full, middle
        else:
            first = middle + 1
    if best.recovery == "quick":
        yield [Candidate(best.config, "full")]


def _is_near(search: Search, trial: Trial) -> bool:
    within = not trial.failed and not trial.excess
    return within and not trial.met and trial.loss <= _NEAR * search.accuracy.max_loss
