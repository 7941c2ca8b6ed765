"""Recipes: the recovery methods of a search."""

from subbyte.algorithms import as_methods, check_recovery
from subbyte.errors import CalibrationError, RecoveryError
from subbyte.tuning.search import Search

DEFAULT_RECIPES = as_methods({"auto": {"minutes": 1}})


def checked_recipes(search: Search, *, asked: bool) -> str:
    """Check that the recovery methods can work on the model, every op quantized that can be, and with its data.

    Args:
        search: whose methods are checked. Those that nobody asked for are taken from it if they cannot work.
        asked: whether the user asked for these methods.

    Returns:
        The methods, or why there are none.

    Raises:
        RecoveryError, CalibrationError: methods that were asked for cannot work; says why, and what to do.
    """
    if not search.recipes:
        return "none"
    chosen = {
        key: next((config for config in alternatives if not config.is_float), alternatives[0])
        for key, alternatives in search.space.alternatives.items()
    }
    try:
        check_recovery(search.model.prepare(search.space.config(chosen)), search.recipes, search.model.batches)
    except (RecoveryError, CalibrationError) as error:
        if asked:
            raise
        search.recipes = ()
        return f"none: {error}"
    return ", ".join(map(str, search.recipes))
