"""`subbyte quantize`: a recipe in; a checkpoint and the table of what it holds out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model as load_weights
from torch import nn

from subbyte.cli.console import note, out, say
from subbyte.cli.failure import UserCodeError, users_code
from subbyte.cli.recipe import QuantizeRecipe, RecipeFile, read_recipe
from subbyte.cli.reference import importing_from, load_data, load_function, load_model
from subbyte.errors import CalibrationError, CheckpointError, ConfigError, ModelError, RecoveryError, TuningError
from subbyte.export.checkpoint import save
from subbyte.quantization import quantize
from subbyte.report import summary


def quantize_recipe(path: Path) -> None:
    """Do what a recipe says and print the result.

    Raises:
        SubbyteError: the recipe, or something that it names, is wrong; with file and line.
    """
    recipe = read_recipe(path)
    with importing_from(recipe.folder):
        _run(recipe)


def _run(recipe: RecipeFile[QuantizeRecipe]) -> None:
    values = recipe.values
    model = float_model(recipe)
    measure = _measure(recipe)
    quantized = quantized_as(recipe, model)
    # Only now, so that a wrong request is told at once; the float model is as it was.
    before, after = measure(model), measure(quantized)
    output = recipe.beside(values.output)
    save(quantized, output)
    out().print(summary(quantized))
    if before is not None:
        say(f"{values.evaluate}: {before:.6g} before, {after:.6g} after")
    say(f"saved to {output} ({output.stat().st_size:,} bytes)")


def float_model(recipe: RecipeFile[Any]) -> nn.Module:
    """The model that a recipe names, with the weights that it names, in eval().

    Raises:
        ConfigError: one of them cannot be loaded.
    """
    values = recipe.values
    note(f"loading {values.model}")
    model = load_model(values.model, recipe.folder, recipe.at("model"))
    if values.weights is not None:
        _load_weights(model, recipe.beside(values.weights), recipe.at("weights"))
    return model.eval()


def quantized_as(recipe: RecipeFile[QuantizeRecipe], model: nn.Module) -> nn.Module:
    """The model quantized as a recipe says.

    Raises:
        SubbyteError: the recipe does not fit the model or the data; with the line.
    """
    capability = recipe.loaded_capability()
    data = data_of(recipe)
    note("quantizing")
    with told_of(recipe):
        values = recipe.values
        return quantize(
            model,
            recipe.request(),
            data,
            first_last=values.first_last,
            capability=capability,
            recover=values.recover,
            seed=values.seed,
            resume=None if values.resume is None else recipe.beside(values.resume),
        )


@contextmanager
def told_of(recipe: RecipeFile[Any]) -> Iterator[None]:
    """Begin the errors of what runs meanwhile with the line of the recipe that they come from."""
    try:
        yield
    except UserCodeError:
        raise
    except RecoveryError as error:
        raise RecoveryError(
            f"{recipe.at('config' if recipe.values.recover is None else 'recover')}: {error}"
        ) from error
    except TuningError as error:
        raise TuningError(f"{recipe.at('tune')}: {error}") from error
    except ConfigError as error:
        raise ConfigError(recipe.said(str(error), "config")) from error
    except CheckpointError as error:  # of the folder of parts that are finished, or of what is written
        usual = "resume" if "resume" in recipe.tree else "output"
        raise CheckpointError(recipe.said(str(error), usual)) from error
    except CalibrationError as error:
        raise CalibrationError(f"{recipe.at('data')}: {error}") from error
    except ModelError as error:
        raise ModelError(recipe.said(str(error), "model")) from error


def _load_weights(model: nn.Module, path: Path, where: str) -> None:
    if not path.is_file():
        raise ConfigError(f"{where}: there is no file {path}")
    try:
        missing, unexpected = load_weights(model, path, strict=False)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{where}: {path} cannot be read as safetensors ({error})") from error
    except RuntimeError as error:
        raise ConfigError(f"{where}: {path} does not fit the model: {error}") from error
    for names, problem in ((missing, "lacks tensors of the model"), (unexpected, "has tensors that the model has not")):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise ConfigError(f"{where}: {path} {problem}: {shown}")


def data_of(recipe: RecipeFile[Any]) -> Any:
    """The batches that a recipe names; None where it names none.

    Raises:
        ConfigError: they cannot be loaded.
    """
    reference = recipe.values.data
    if reference is None:
        return None
    where = recipe.at("data")
    data = load_data(reference, recipe.folder, where)
    plain = isinstance(data, torch.Tensor | dict | tuple) or not hasattr(data, "__iter__")
    return data if plain else _Batches(data, f"{where}: {reference}")


@dataclass(frozen=True)
class _Batches:
    """The user's batches; what fails while they are made is told as theirs."""

    batches: Any
    where: str

    def __iter__(self) -> Iterator[Any]:
        with users_code(self.where):
            iterator = iter(self.batches)
        while True:
            with users_code(self.where):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    def __len__(self) -> int:
        return len(self.batches)


def _measure(recipe: RecipeFile[QuantizeRecipe]) -> Callable[[nn.Module], float | None]:
    """The recipe's `evaluate`, checked; gives None where the recipe has none."""
    reference = recipe.values.evaluate
    if reference is None:
        return lambda model: None
    where = recipe.at("evaluate")
    evaluate = load_function(reference, recipe.folder, where)

    def measure(model: nn.Module) -> float:
        note(f"evaluating with {reference}")
        with users_code(f"{where}: {reference}"), torch.no_grad():
            return float(evaluate(model))

    return measure
