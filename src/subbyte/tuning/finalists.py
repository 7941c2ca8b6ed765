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
    """Propose up to two almost good configurations for full recovery, then the best one.

    If the best trial is good enough, only cheaper configurations are proposed. Those that no other beats in loss and
    cost are tried by bisection: the one of middle cost first, then a cheaper one if it became good enough, otherwise a
    more expensive one. The best one is proposed last, if it was recovered quickly.

    Args:
        search: The search, with the tolerable loss.
        trials: All trials of the strategy.
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
