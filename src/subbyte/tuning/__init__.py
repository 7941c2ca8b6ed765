"""Accuracy-aware tuning: space, strategies, criteria, the loop, the study."""

from subbyte.tuning.accuracy import Accuracy
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.distributed import Ray, Shared, distribution_of
from subbyte.tuning.objective import Goal, Objective, read_goal, register_objective
from subbyte.tuning.result import TuneResult, tuning_result
from subbyte.tuning.run import Limits
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.storage import DEFAULT_FILE
from subbyte.tuning.strategies import register_strategy, registered_strategies
from subbyte.tuning.study import best_configuration
from subbyte.tuning.trial import Trial
from subbyte.tuning.tune import Task, search_best

__all__ = [
    "DEFAULT_FILE",
    "Accuracy",
    "Candidate",
    "Goal",
    "Limits",
    "Objective",
    "Proposals",
    "Ray",
    "Search",
    "Shared",
    "Task",
    "Trial",
    "TuneResult",
    "best_configuration",
    "distribution_of",
    "read_goal",
    "register_objective",
    "register_strategy",
    "registered_strategies",
    "search_best",
    "tuning_result",
]
