"""`subbyte doctor`: where the model of a recipe, or of its checkpoint, loses accuracy."""

from collections.abc import Sequence
from pathlib import Path

from subbyte.cli.console import note, out, say
from subbyte.cli.quantize import data_of, float_model, quantized_as, told_of
from subbyte.cli.recipe import RecipeFile, read_recipe
from subbyte.cli.reference import importing_from
from subbyte.errors import ConfigError
from subbyte.export.checkpoint import load
from subbyte.report import Comparison, compare


def examine(path: Path, checkpoint: Path | None, pages: Sequence[Path]) -> None:
    """Compare the float model of a recipe with the quantized one on the recipe's data, and print what is found.

    Args:
        path: of the recipe.
        checkpoint: the quantized model; None quantizes as the recipe says, and saves nothing.
        pages: `.html` and `.json` files to write, too.

    Raises:
        SubbyteError: the recipe, or something that it names, is wrong; with file and line.
    """
    recipe = read_recipe(path)
    if recipe.values.data is None:
        raise ConfigError(f"{path}: the key 'data' is missing; both models are run on it to be compared")
    for page in pages:
        Comparison.check_path(page)  # before minutes are spent
    with importing_from(recipe.folder):
        found = _compared(recipe, checkpoint)
    out().print(found)
    for page in pages:
        found.save(page)
        say(f"saved to {page}")


def _compared(recipe: RecipeFile, checkpoint: Path | None) -> Comparison:
    model = float_model(recipe)
    quantized = quantized_as(recipe, model) if checkpoint is None else load(checkpoint, model)
    data = data_of(recipe)  # again: it may be a generator, and spent
    note("comparing")
    with told_of(recipe):
        return compare(model, quantized, data)
