"""Accuracy-aware tuning: space, strategies, criteria, the loop, the study."""

from subbyte.tuning.accuracy import Accuracy
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.distributed import Ray, Shared, distribution_of
from subbyte.tuning.early_stopping import EarlyStopping, early_stopping_of
from subbyte.tuning.ladder import LeftOut, width
from subbyte.tuning.measured import Measured
from subbyte.tuning.objective import Goal, Latency, Objective, objective_of, read_goal, register_objective
from subbyte.tuning.pareto import pareto
from subbyte.tuning.result import TuneResult, Wanted, check_report_path, register_report, tuning_result
from subbyte.tuning.run import Limits
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.storage import DEFAULT_FILE
from subbyte.tuning.strategies import register_strategy, registered_strategies, strategy_of
from subbyte.tuning.study import best_configuration
from subbyte.tuning.trial import Trial, best_of
from subbyte.tuning.tune import Task, search_best

__all__ = [
    "DEFAULT_FILE",
    "Accuracy",
    "Candidate",
    "EarlyStopping",
    "Goal",
    "Latency",
    "LeftOut",
    "Limits",
    "Measured",
    "Objective",
    "Proposals",
    "Ray",
    "Search",
    "Shared",
    "Task",
    "Trial",
    "TuneResult",
    "Wanted",
    "best_of",
    "check_report_path",
    "objective_of",
    "pareto",
    "best_configuration",
    "distribution_of",
    "early_stopping_of",
    "read_goal",
    "register_objective",
    "register_report",
    "register_strategy",
    "registered_strategies",
    "search_best",
    "strategy_of",
    "tuning_result",
    "width",
]
