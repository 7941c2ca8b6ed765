"""Recipes: which a model can take."""

from subbyte.algorithms import check_recovery
from subbyte.tuning.search import Search


def check_recipes(search: Search) -> None:
    """Refuse recovery methods that cannot work on the model, every op quantized that can be, or with its data.

    Raises:
        RecoveryError, CalibrationError: saying why, and what to do.
    """
    if not search.recipes:
        return
    chosen = {
        key: next((config for config in alternatives if not config.is_float), alternatives[0])
        for key, alternatives in search.space.alternatives.items()
    }
    check_recovery(search.model.prepare(search.space.config(chosen)), search.recipes, search.model.batches)
