"""The recipe of `subbyte train`: what `subbyte quantize` takes, the training data, and how to train."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, StrictStr
from torch import nn

from subbyte.capability import Located
from subbyte.cli.recipe import Recipe, RecipeFile, read_recipe_of
from subbyte.errors import ConfigError
from subbyte.training import Distillation, TrainingPlan, TrainingRules


class TrainRecipe(Recipe):
    """What `subbyte train` does.

    Args:
        data: to calibrate with: batches as the model takes them.
        loader: to train on: the batches of an epoch, pairs (inputs, target), or a function that returns them.
        loss: a function of the model's output and the target, as in `torch.nn.functional:cross_entropy`.
        evaluate: from a model to its metric, a number.
        train: how long, by which optimizer and so on; its keys are those of TrainingPlan.
        training: which gradient each quantizer has; its keys are those of TrainingRules.
        distill: what is learned from the teacher: `logits`, `blocks`, `logits+blocks`, or Distillation's fields.
        teacher: the float model to learn from, as `model` is named; left out, `model` itself.
    """

    parts: ClassVar[Mapping[str, type[BaseModel]]] = {"train": TrainingPlan, "training": TrainingRules}
    called: ClassVar[Mapping[str, str]] = {"loss_fn": "loss", "distillation": "distill"}

    data: StrictStr
    loader: StrictStr
    loss: StrictStr
    evaluate: StrictStr
    train: dict[str, Any]
    training: dict[str, Any] = {}
    distill: StrictStr | dict[str, Any] | None = None
    teacher: StrictStr | None = None


class TrainRecipeFile:
    """A recipe of `subbyte train` and the plan that it holds, checked; nothing that it names is loaded.

    Args:
        path: of the recipe.

    Raises:
        ConfigError: unreadable, a wrong key or value, an output that cannot be; with file and line.
    """

    def __init__(self, path: Path) -> None:
        self.recipe: RecipeFile[TrainRecipe] = read_recipe_of(TrainRecipe, path)
        values, tree = self.recipe.values, self.recipe.tree
        self.plan = _plan(tree["train"], path.parent)
        with self.said_of("training"):
            self.rules = TrainingRules.of(values.training)
        with self.said_of("distill"):
            if values.distill is not None:
                Distillation.of(values.distill, nn.Identity())
        if values.teacher is not None and values.distill is None:
            raise ConfigError(f"{self.recipe.at('teacher')}: nothing is learned from it; say what by the key 'distill'")

    @contextmanager
    def said_of(self, key: str) -> Iterator[None]:
        """Begin errors with the line of a key."""
        try:
            yield
        except ConfigError as error:
            raise ConfigError(f"{self.recipe.at(key)}: {str(error).removeprefix(f'{key}: ')}") from error

    @property
    def output(self) -> Path:
        """Where the checkpoint goes."""
        return self.recipe.beside(self.recipe.values.output)

    @property
    def kept_in(self) -> Path:
        """Where an unfinished training is kept."""
        return self.output.with_name(f"{self.output.name}.training")


def _plan(tree: Located, folder: Path) -> TrainingPlan:
    """The plan, checked key by key, so that the line of the one that is wrong is known."""
    given = dict(tree)
    if isinstance(given.get("stages"), list):
        given["stages"] = [_beside(stage, folder) for stage in given["stages"]]
    for key, value in given.items():
        with _said_at(tree, key):
            TrainingPlan(**({"epochs": 1} | {key: value}))
    with _said_at(tree, "epochs"):
        return TrainingPlan(**given)


@contextmanager
def _said_at(tree: Located, key: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        message = str(error).removeprefix("training plan: ").removeprefix(f"{key}: ")
        raise ConfigError(f"{tree.at(key)}: train: {key}: {message}") from error


def _beside(stage: Any, folder: Path) -> Any:
    """A stage whose configuration, if that is a file, is found from the recipe."""
    config = stage.get("config") if isinstance(stage, dict) else None
    if isinstance(config, str) and config.endswith((".yaml", ".yml")):
        return stage | {"config": str((folder / config).resolve())}
    return stage
