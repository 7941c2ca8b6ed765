"""The recipe of `subbyte tune`: what `subbyte quantize` takes, how good a model is, and how to search."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from subbyte.capability import Located, Place
from subbyte.cli.recipe import Recipe, RecipeFile, read_as, read_recipe_of
from subbyte.config import PostTrainingQuantConfig
from subbyte.errors import ConfigError
from subbyte.tuning import (
    DEFAULT_FILE,
    Accuracy,
    Goal,
    distribution_of,
    early_stopping_of,
    read_goal,
    strategy_of,
)

Number = StrictInt | StrictFloat


class TuneOptions(BaseModel):
    """The mapping `tune` of a recipe; as the arguments of `subbyte.quantization.tune`, whose defaults they have.

    Args:
        confirm: a second evaluation, on other data, as `file.py:name`.
        loss_fn: a function of a model and a batch, as `file.py:name`, for strategies that need gradients.
        storage: a file, relative to the recipe, or the URL of a database.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_loss: Number = 0.01
    criterion: Literal["relative", "absolute"] = "relative"
    higher_is_better: StrictBool | dict[str, StrictBool] = True
    metric_weights: dict[str, Number] = {}
    confidence: Number | None = 0.9
    confirm: StrictStr | None = None
    objective: StrictStr | dict[str, Number] = "size"
    budgets: dict[str, Number] = {}
    strategy: StrictStr = "sensitivity"
    strategy_options: dict[str, Any] = {}
    loss_fn: StrictStr | None = None
    max_trials: Annotated[StrictInt, Field(gt=0)] = 60
    timeout: Annotated[Number, Field(gt=0)] | None = None
    storage: StrictStr = DEFAULT_FILE
    study: StrictStr | None = None
    distributed: StrictStr | dict[str, Any] | None = None
    early_stopping: Number | None = None

    def accuracy(self) -> Accuracy:
        """What may be lost.

        Raises:
            TuningError: that has no meaning.
        """
        return Accuracy(self.max_loss, self.criterion, self.higher_is_better, self.metric_weights, self.confidence)

    def goal(self) -> Goal:
        """What to make small.

        Raises:
            TuningError: an objective is unknown, or a weight or budget is none.
        """
        return read_goal(self.objective, self.budgets)


class TuneRecipe(Recipe):
    """What `subbyte tune` does. `config` says what is fixed and which alternatives ops have; all, where left out.

    Args:
        data: to calibrate with.
        evaluate: from a model to its metric: a number, or several by name.
        tune: how to search; its keys are those of TuneOptions.
    """

    parts: ClassVar[Mapping[str, type[BaseModel]]] = {"tune": TuneOptions}

    config: StrictStr | dict[str, Any] = {}
    data: StrictStr
    evaluate: StrictStr
    tune: dict[str, Any] = {}


class TuneRecipeFile:
    """A recipe of `subbyte tune` and the options that it holds, checked; nothing that it names is loaded.

    Args:
        path: of the recipe.

    Raises:
        ConfigError: unreadable, a wrong key or value, an output that cannot be; with file and line.
    """

    def __init__(self, path: Path) -> None:
        self.recipe: RecipeFile[TuneRecipe] = read_recipe_of(TuneRecipe, path)
        if not isinstance(self.recipe.request(), PostTrainingQuantConfig):
            raise ConfigError(
                f"{self.recipe.at('config')}: it says what every op gets, so there is nothing to tune; "
                "give alternatives"
            )
        given = self.recipe.tree.get("tune", {})
        self.tree = given if isinstance(given, Located) else Located(Place(str(path)))
        self.options = read_as(TuneOptions, self.tree, "tune")
        for key, check in (
            ("strategy", lambda: strategy_of(self.options.strategy)),
            ("objective", lambda: read_goal(self.options.objective)),
            ("budgets", self.options.goal),
            ("max_loss", lambda: Accuracy(self.options.max_loss)),
            ("confidence", lambda: Accuracy(confidence=self.options.confidence)),
            ("metric_weights", self.options.accuracy),
            ("distributed", lambda: distribution_of(self.options.distributed)),
            ("early_stopping", lambda: early_stopping_of(self.options.early_stopping)),
        ):
            with self.said_of(key):
                check()

    @contextmanager
    def said_of(self, key: str) -> Iterator[None]:
        """Begin errors with the line of an option."""
        try:
            yield
        except ConfigError as error:
            raise ConfigError(f"{self.at(key)}: {error}") from error

    def at(self, key: str) -> str:
        """`FILE:LINE: key` of an option."""
        return f"{self.tree.at(key)}: {key}"

    @property
    def storage(self) -> str:
        """A URL, or the file beside the recipe."""
        named = self.options.storage
        return named if "://" in named else str(self.recipe.beside(named))
