"""The recipe of `subbyte quantize`: a YAML file, checked before anything runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, ValidationError

from subbyte.algorithms import as_methods
from subbyte.capability import Capability, Located, built_in_capabilities, load_capability, read_yaml
from subbyte.config import PostTrainingQuantConfig, as_request
from subbyte.config.request import Request
from subbyte.errors import CapabilityError, ConfigError, RecoveryError, nearest


class Recipe(BaseModel):
    """What a recipe may say. Paths are relative to the recipe.

    Args:
        model: a function without arguments that returns the float torch.nn.Module, or the module itself, as
            `package.module:name` or `path/to/file.py:name`.
        config: a shorthand such as `w4a8`, a mapping of PostTrainingQuantConfig's fields, or a YAML file of them.
        output: where the checkpoint goes.
        weights: a safetensors file of the model's state_dict.
        data: batches, or a function that returns them; weight-only and dynamic quantization need none.
        first_last: the precision of the first and last layers.
        capability: a capability file, or a built-in's name.
        evaluate: a function of a model that returns a figure; run before and after.
        recover: methods that recover accuracy, in order: a name, or a list of names and of `{name: options}`.
        seed: of the randomness in these.
        resume: a folder in which their finished parts are kept, so that an interrupted run goes on there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    resume: StrictStr | None = None


_EXPECTED = {
    "config": "text or a mapping",
    "recover": "a name, a mapping, or a list of names and mappings",
    "seed": "a whole number",
}


@dataclass(frozen=True)
class RecipeFile:
    """A recipe and where it was written."""

    path: Path
    values: Recipe
    tree: Located

    @property
    def folder(self) -> Path:
        return self.path.parent

    def at(self, key: str) -> str:
        """`FILE:LINE: key`, to begin messages with."""
        return f"{self.tree.at(key)}: {key}"

    def beside(self, name: str) -> Path:
        """A path of the recipe, relative to where the command runs."""
        return self.folder / name

    def request(self) -> Request:
        """What `config` asks for.

        Raises:
            ConfigError: it is misspelt; with the line.
        """
        config = self.tree["config"]
        if isinstance(config, Located):
            _check_parts(config)
        elif config.endswith((".yaml", ".yml")):
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


def read_recipe(path: Path) -> RecipeFile:
    """Read and check a recipe; nothing that it names is loaded.

    Raises:
        ConfigError: unreadable, a wrong key or value, an output that cannot be; with file and line.
    """
    tree = read_yaml(path, ConfigError)
    try:
        recipe = RecipeFile(path, Recipe.model_validate(dict(tree)), tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(error, tree))) from None
    recipe.request()
    _check_recovery(recipe)
    _check_output(recipe)
    return recipe


def _check_recovery(recipe: RecipeFile) -> None:
    try:
        as_methods(recipe.values.recover or [])
    except RecoveryError as error:
        raise RecoveryError(f"{recipe.at('recover')}: {error}") from None
    request = recipe.request()
    in_config = isinstance(request, PostTrainingQuantConfig) and request.recovery
    if recipe.values.resume is not None and not (recipe.values.recover or in_config):
        raise RecoveryError(
            f"{recipe.at('resume')}: there is nothing to keep, as no recovery method is asked for; name some under the "
            "key 'recover'"
        )


def _check_output(recipe: RecipeFile) -> None:
    output = recipe.beside(recipe.values.output)
    if not output.parent.is_dir():
        raise ConfigError(f"{recipe.at('output')}: there is no folder {output.parent}; create it first")
    if output.is_dir():
        raise ConfigError(f"{recipe.at('output')}: {output} is a folder; name a file in it")
    weights = recipe.values.weights
    if weights is not None and recipe.beside(weights).resolve() == output.resolve():
        raise ConfigError(f"{recipe.at('output')}: it would replace the float weights; name another file")


def _problems(error: ValidationError, tree: Located) -> list[str]:
    """One line for each problem; a missing key is often the misspelt one, so those come alone."""
    allowed = list(Recipe.model_fields)
    listed = f"(allowed: {', '.join(allowed)})"
    unknown = [key for key in tree if key not in allowed]
    if unknown:
        return [f"{tree.at(key)}: unknown key {key!r}{nearest(key, allowed)} {listed}" for key in unknown]
    lines = {}
    for problem in error.errors():
        key = str(problem["loc"][0])
        if problem["type"] == "missing":
            lines[key] = f"{tree.place}: the key {key!r} is missing; a recipe needs model, config and output"
        else:
            expected = _EXPECTED.get(key, "text")
            lines[key] = f"{tree.at(key)}: {key}: expected {expected}, found {tree[key]!r}"
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
