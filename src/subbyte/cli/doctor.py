"""`subbyte doctor`: where the model of a recipe, or of its checkpoint, loses accuracy."""

from collections.abc import Mapping
from pathlib import Path

from subbyte.cli.console import note, out, say
from subbyte.cli.quantize import data_of, float_model, quantized_as, told_of
from subbyte.cli.recipe import QuantizeRecipe, RecipeFile, read_recipe
from subbyte.cli.reference import importing_from
from subbyte.errors import ConfigError
from subbyte.export.checkpoint import load
from subbyte.report import Comparison, compare


def examine(path: Path, checkpoint: Path | None, pages: Mapping[str, Path]) -> None:
    """Compare the float model of a recipe with the quantized one on the recipe's data, and print what is found.

    Args:
        path: of the recipe.
        checkpoint: the quantized model; None quantizes as the recipe says, and saves nothing.
        pages: files to write, too, by `.html` and `.json`.

    Raises:
        SubbyteError: the recipe, or something that it names, is wrong; with file and line.
    """
    recipe = read_recipe(path)
    if recipe.values.data is None:
        raise ConfigError(f"{path}: the key 'data' is missing; both models are run on it to be compared")
    for ending, page in pages.items():  # before minutes are spent
        Comparison.check_path(page)
        if page.suffix != ending:
            raise ConfigError(f"--{ending[1:]}: {page} does not end in {ending}; name a file that does")
    with importing_from(recipe.folder):
        found = _compared(recipe, checkpoint)
    out().print(found)
    for page in pages.values():
        found.save(page)
        say(f"saved to {page}")


def _compared(recipe: RecipeFile[QuantizeRecipe], checkpoint: Path | None) -> Comparison:
    model = float_model(recipe)
    quantized = quantized_as(recipe, model) if checkpoint is None else load(checkpoint, model)
    data = data_of(recipe)  # again: it may be a generator, and spent
    note("comparing")
    with told_of(recipe):
        return compare(model, quantized, data)
