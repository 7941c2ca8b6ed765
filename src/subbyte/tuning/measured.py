"""How right the predictions of objectives are that are added up op by op."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from subbyte.adaptor import TunableModel
from subbyte.spec import TuneConfig
from subbyte.tuning.objective import objective_of


@dataclass(frozen=True)
class Measured:
    """Of one model.

    Args:
        predicted: what the search went by.
        measured: of the whole model.
    """

    predicted: float
    measured: float


def measure(
    model: TunableModel, objectives: Iterable[str], wholes: Mapping[str, tuple[Any, TuneConfig]]
) -> dict[str, dict[str, Measured]]:
    """Measure whole models in every objective that is predicted.

    Args:
        model: that trials ran on.
        objectives: by name; those that are exact are left out.
        wholes: by what they are called, models and their configurations.

    Returns:
        by objective, then by what the model is called.
    """
    found: dict[str, dict[str, Measured]] = {}
    for objective in map(objective_of, objectives):
        for called, (whole, config) in wholes.items():
            value = objective.measured(model, whole)
            if value is not None:
                found.setdefault(objective.name, {})[called] = Measured(objective.of(model, config), value)
    return found
