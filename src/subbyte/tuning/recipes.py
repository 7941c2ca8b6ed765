"""Recipes: which a model can take."""

from subbyte.algorithms import check_recovery
from subbyte.spec import OpConfig
from subbyte.tuning.search import Search


def check_recipes(search: Search) -> None:
    """Refuse recovery methods that cannot work on the model, or with its calibration data.

    Raises:
        RecoveryError, CalibrationError: saying why, and what to do.
    """
    if not search.recipes:
        return
    quantized = {
        key: next((each for each in found if not each.is_float), OpConfig())
        for key, found in search.space.alternatives.items()
    }
    chosen = {key: config for key, config in quantized.items() if config in search.space.alternatives[key]}
    check_recovery(search.model.prepare(search.space.config(chosen)), search.recipes, search.model.batches)
