"""`subbyte train`: a recipe in; the trained model's checkpoint, and how good it is, out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from subbyte.cli.console import note, out, say
from subbyte.cli.failure import UserCodeError, users_code
from subbyte.cli.quantize import data_of, float_model, told_of
from subbyte.cli.reference import importing_from, load_data, load_function, load_model
from subbyte.cli.train_recipe import TrainRecipeFile
from subbyte.errors import EvaluationError, TrainingError
from subbyte.export.checkpoint import save
from subbyte.quantization import convert, prepare_qat
from subbyte.report import summary
from subbyte.report.training.live import shown_live
from subbyte.report.training.table import conclusion, outcome_table
from subbyte.training import Distillation, TrainingResult, run_training


def train_recipe(path: Path) -> None:
    """Do what a recipe says and print the result.

    Raises:
        SubbyteError: the recipe, or something that it names, is wrong, or training failed; with file and line.
    """
    file = TrainRecipeFile(path)
    with importing_from(path.parent):
        _run(file)
    file.kept_in.unlink(missing_ok=True)


def _run(file: TrainRecipeFile) -> None:
    model = float_model(file.recipe)
    evaluate = _evaluation(file)
    result = _trained(file, model, evaluate)
    model.eval()
    with torch.no_grad():
        before = float(evaluate(model))
    with _told_of_training(file):
        converted = convert(result.model)
        save(converted, file.output)
    report = summary(converted)
    out().print(report)
    out().print(outcome_table(report, before, result))
    say(conclusion(result))
    say(f"saved to {file.output} ({file.output.stat().st_size:,} bytes)")


def _trained(file: TrainRecipeFile, model: nn.Module, evaluate: Callable[[nn.Module], Any]) -> TrainingResult:
    recipe, values = file.recipe, file.recipe.values
    loss = _told(load_function(values.loss, recipe.folder, recipe.at("loss")), f"{recipe.at('loss')}: {values.loss}")
    loss.__qualname__ = values.loss  # by which a training that is taken up knows it
    loader = load_data(values.loader, recipe.folder, recipe.at("loader"))
    distill = _distillation(file, model)
    data = data_of(recipe)
    kept = None if data is None or isinstance(data, torch.Tensor) else list(data)
    data = data if kept is None else kept
    note("preparing")
    with told_of(recipe):
        prepared = prepare_qat(
            model, recipe.request(), data, first_last=values.first_last, capability=recipe.loaded_capability(),
            training=file.rules, recover=values.recover, seed=values.seed,
        )  # fmt: skip
    note(f"training; it is kept in {file.kept_in}")
    with _told_of_training(file), shown_live() as watch:
        return run_training(
            prepared, loader, loss, file.plan, distill=distill, data=data, evaluate=evaluate,
            checkpoint=file.kept_in, seed=values.seed, watch=watch,
            save=lambda trained: save(convert(trained), file.output),
        )  # fmt: skip


def _distillation(file: TrainRecipeFile, model: nn.Module) -> Distillation | None:
    recipe, values = file.recipe, file.recipe.values
    if values.distill is None:
        return None
    named = values.teacher
    teacher = model if named is None else load_model(named, recipe.folder, recipe.at("teacher"))
    return Distillation.of(values.distill, teacher.eval())


def _evaluation(file: TrainRecipeFile) -> Callable[[nn.Module], Any]:
    recipe = file.recipe
    named, where = recipe.values.evaluate, recipe.at("evaluate")
    return _told(load_function(named, recipe.folder, where), f"{where}: {named}")


def _told(function: Callable[..., Any], where: str) -> Callable[..., Any]:
    """The user's function; what it raises is told as theirs."""

    def called(*args: Any) -> Any:
        with users_code(where):
            return function(*args)

    return called


@contextmanager
def _told_of_training(file: TrainRecipeFile) -> Iterator[None]:
    """Begin the errors of training with the line of the recipe that they come from."""
    recipe = file.recipe
    try:
        with told_of(recipe):
            yield
    except UserCodeError:
        raise
    except TrainingError as error:
        raise TrainingError(recipe.said(str(error), "train")) from error
    except EvaluationError as error:
        raise EvaluationError(f"{recipe.at('evaluate')}: {error}") from error
