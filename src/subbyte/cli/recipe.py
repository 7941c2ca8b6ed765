"""Recipes: a YAML file of what to do with a model, checked before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, ValidationError

from subbyte.algorithms import as_methods
from subbyte.capability import Capability, Located, built_in_capabilities, load_capability, read_yaml
from subbyte.config import PostTrainingQuantConfig, as_request
from subbyte.config.request import Request
from subbyte.errors import CapabilityError, ConfigError, RecoveryError, nearest, quoted


class Recipe(BaseModel):
    """What every recipe may say. Paths are relative to the recipe.

    Args:
        model: a function without arguments that returns the float torch.nn.Module, or the module itself, as
            `package.module:name` or `path/to/file.py:name`.
        config: a shorthand such as `w4a8`, a mapping of PostTrainingQuantConfig's fields, or a YAML file of them.
        output: where the checkpoint goes.
        weights: a safetensors file of the model's state_dict.
        data: batches, or a function that returns them.
        first_last: the precision of the first and last layers.
        capability: a capability file, or a built-in's name.
        evaluate: a function of a model that returns a figure.
        recover: methods that recover accuracy, in order: a name, or a list of names and of `{name: options}`.
        seed: of the randomness in these.

    Class attributes:
        parts: what has the fields of keys that hold mappings.
        called: the keys of what the library calls otherwise in its messages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    parts: ClassVar[Mapping[str, type[BaseModel]]] = {}
    called: ClassVar[Mapping[str, str]] = {}

    model: StrictStr
    config: StrictStr | dict[str, Any]
    output: StrictStr
    weights: StrictStr | None = None
    data: StrictStr | None = None
    first_last: StrictStr | None = None
    capability: StrictStr | None = None
    evaluate: StrictStr | None = None
    recover: StrictStr | list[Any] | dict[str, Any] | None = None
    seed: StrictInt = 0


class QuantizeRecipe(Recipe):
    """What `subbyte quantize` does, which needs data for static ranges alone and evaluates before and after.

    Args:
        resume: a folder in which finished parts of recovery are kept, so that an interrupted run goes on there.
    """

    resume: StrictStr | None = None


Kind = TypeVar("Kind", bound=Recipe)


_EXPECTED = {
    "config": "text or a mapping",
    "recover": "a name, a mapping, or a list of names and mappings",
    "seed": "a whole number",
    "tune": "a mapping",
    "max_loss": "a number",
    "criterion": "relative or absolute",
    "higher_is_better": "true, false, or a mapping of metrics to these",
    "metric_weights": "a mapping of metrics to numbers",
    "objective": "a name, or a mapping of names to weights",
    "budgets": "a mapping of objectives to numbers",
    "strategy_options": "a mapping",
    "max_trials": "a whole number above zero",
    "timeout": "seconds, above zero",
    "train": "a mapping",
    "training": "a mapping",
    "distill": "logits, blocks, logits+blocks, or a mapping",
}


@dataclass(frozen=True)
class RecipeFile(Generic[Kind]):
    """A recipe and where it was written."""

    path: Path
    values: Kind
    tree: Located

    @property
    def folder(self) -> Path:
        return self.path.parent

    def at(self, key: str) -> str:
        """`FILE:LINE: key`, to begin messages with."""
        return f"{self.tree.at(key)}: {key}"

    def said(self, message: str, usual: str) -> str:
        """A message with the line of the key that it begins with, as in `seed: ...`; else of the one that is usual."""
        begin, separator, rest = message.partition(": ")
        key = self.values.called.get(begin, begin)
        if separator and key in self.tree:
            return f"{self.at(key)}: {rest}"
        for name, part in self.values.parts.items():
            if separator and begin in part.model_fields and name in self.tree:
                return f"{self.tree[name].at(begin)}: {name}: {message}"
        return f"{self.at(usual)}: {message}"

    def beside(self, name: str) -> Path:
        """A path of the recipe, relative to where the command runs."""
        return self.folder / name

    def request(self) -> Request:
        """What `config` asks for.

        Raises:
            ConfigError: it is misspelt; with the line.
        """
        config = self.tree.get("config", self.values.config)
        if isinstance(config, Located):
            _check_parts(config)
        elif isinstance(config, str) and config.endswith((".yaml", ".yml")):
            config = self.beside(config)
        try:
            return as_request(config)
        except ConfigError as error:
            raise ConfigError(f"{self.at('config')}: {error}") from None

    def loaded_capability(self) -> Capability:
        """The capability that is named, or the built-in one.

        Raises:
            CapabilityError: there is none, or it is wrong.
        """
        name = self.values.capability
        if name is None or name in built_in_capabilities():
            return load_capability(*([] if name is None else [name]))
        try:
            return load_capability(self.beside(name))
        except CapabilityError as error:
            raise CapabilityError(f"{self.at('capability')}: {error}") from error


def read_recipe(path: Path) -> RecipeFile[QuantizeRecipe]:
    """Read and check a recipe of `subbyte quantize`; nothing that it names is loaded.

    Raises:
        ConfigError: unreadable, a wrong key or value, an output that cannot be; with file and line.
    """
    recipe = read_recipe_of(QuantizeRecipe, path)
    request = recipe.request()
    in_config = isinstance(request, PostTrainingQuantConfig) and request.recovery
    if recipe.values.resume is not None and not (recipe.values.recover or in_config):
        raise RecoveryError(
            f"{recipe.at('resume')}: there is nothing to keep, as no recovery method is asked for; name some under the "
            "key 'recover'"
        )
    return recipe


def read_recipe_of(kind: type[Kind], path: Path) -> RecipeFile[Kind]:
    """Read and check what all recipes have, of a kind of recipe.

    Raises:
        ConfigError: as for `read_recipe`.
    """
    tree = read_yaml(path, ConfigError)
    recipe = RecipeFile(path, read_as(kind, tree), tree)
    recipe.request()
    _check_recovery(recipe)
    _check_output(recipe)
    return recipe


Model = TypeVar("Model", bound=BaseModel)


def read_as(schema: type[Model], tree: Located, what: str = "a recipe") -> Model:
    """A mapping of a recipe, checked by its schema.

    Args:
        schema: whose fields are the keys.
        tree: the mapping.
        what: it is, in messages.

    Raises:
        ConfigError: a key is unknown or missing, or a value is of another type; with the line.
    """
    try:
        return schema.model_validate(dict(tree))
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(error, tree, schema, what))) from None


def _check_recovery(recipe: RecipeFile[Any]) -> None:
    try:
        as_methods(recipe.values.recover or [])
    except RecoveryError as error:
        raise RecoveryError(f"{recipe.at('recover')}: {error}") from None


def _check_output(recipe: RecipeFile[Any]) -> None:
    output = recipe.beside(recipe.values.output)
    if not output.parent.is_dir():
        raise ConfigError(f"{recipe.at('output')}: there is no folder {output.parent}; create it first")
    if output.is_dir():
        raise ConfigError(f"{recipe.at('output')}: {output} is a folder; name a file in it")
    weights = recipe.values.weights
    if weights is not None and recipe.beside(weights).resolve() == output.resolve():
        raise ConfigError(f"{recipe.at('output')}: it would replace the float weights; name another file")


def _where(key: str, schema: type[BaseModel]) -> str:
    """What an unknown key may have been meant to be."""
    parts = schema.parts if issubclass(schema, Recipe) else {}
    for name, part in parts.items():
        if key in part.model_fields:
            return f", which is one of the mapping {quoted(name)}: write it there, indented"
    return nearest(key, list(schema.model_fields))


def _problems(error: ValidationError, tree: Located, schema: type[BaseModel], what: str) -> list[str]:
    """One line for each problem; a missing key is often the misspelt one, so those come alone."""
    allowed = list(schema.model_fields)
    listed = f"(allowed: {', '.join(allowed)})"
    unknown = [key for key in tree if key not in allowed]
    if unknown:
        return [f"{tree.at(key)}: unknown key {quoted(key)}{_where(key, schema)} {listed}" for key in unknown]
    lines = {}
    for problem in error.errors():
        key = str(problem["loc"][0])
        if problem["type"] == "missing":
            *others, last = [name for name, field in schema.model_fields.items() if field.is_required()]
            lines[key] = f"{tree.place}: the key {quoted(key)} is missing; {what} needs {', '.join(others)} and {last}"
        else:
            expected = _EXPECTED.get(key, "text")
            lines[key] = f"{tree.at(key)}: {key}: expected {expected}, found {quoted(tree[key])}"
    return list(lines.values())


def _check_parts(config: Located) -> None:
    """Check `config` piece by piece, so that the line of the piece that is wrong is known."""
    if "op" in config:
        return  # a TuneConfig
    for key, value in config.items():
        by_op = isinstance(value, Located) and key in ("op_type_dict", "op_name_dict")
        pieces = [({op: value[op]}, value.at(op)) for op in value] if by_op else [(value, config.at(key))]
        for piece, place in pieces:
            try:
                PostTrainingQuantConfig.from_dict({key: piece})
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from None
