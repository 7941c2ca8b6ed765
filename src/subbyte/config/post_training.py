"""What a user asks of post-training quantization."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictStr,
    ValidationError,
    field_validator,
)

from subbyte.config.criteria import AccuracyCriterion, TuningCriterion
from subbyte.config.fields import parse_fields
from subbyte.config.recipes import ENDS, read_recipes
from subbyte.errors import ConfigError, nearest, quoted

Approach = Literal["static", "dynamic", "weight_only", "auto", "quant_aware"]
Count = Annotated[int, Field(strict=True, gt=0)]


class PostTrainingQuantConfig(BaseModel):
    """A request for post-training quantization; a capability turns it into a TuneConfig.

    Args:
        approach: the mode of ops for which no other is asked; `auto` is static where the capability has
            that for an op, else dynamic, else weight-only; `quant_aware` is static by what it has for training.
        precision: of all weighted ops and matmuls, as in `w4a8`; `default` gives each op the first precision that the
            capability lists for it, in the first of the modes static, dynamic and weight-only; None is the
            capability's default section.
        op_type_dict: by op type (or a regular expression that matches it whole), either a precision
            (`'w4a8'`, a section's name, `'fp32'`), which states the whole op, or fields, as in
            `{'weight': {'dtype': ['int4']}}`, which lie over what was asked before. A list names
            alternatives for tuning; without tuning the first that is allowed is taken.
        op_name_dict: the same by op name; beats op types. Later entries beat earlier ones.
        excluded_precisions: sections or data types not to use; an op whose default is one stays fp32.
        calibration_sampling_size: samples of calibration data to use (of a list the most); None is all that is given.
        recipes: `first_conv_or_matmul_quantization` and `last_conv_or_matmul_quantization`; False leaves
            those ops in fp32: the convolutions, linear maps and matrix products before or after which no other stands.
            Also methods that recover accuracy, in the order they run, each with True or its options; a list of names
            and of `{name: options}` serves too, as in `["equalize", {"reconstruct": {"steps": 500}}]`.
        first_last: the precision of the first and last ops.
        accuracy_criterion: of `fit` with an evaluation: how much worse than the float model a quantized one may be.
        tuning_criterion: of the same: how the search goes, and when it ends.

    Raises:
        ConfigError: an unknown key or a wrong value, with the nearest spelling and what is allowed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    approach: Approach = "static"
    precision: StrictStr | None = None
    op_type_dict: dict[StrictStr, Any] = {}
    op_name_dict: dict[StrictStr, Any] = {}
    excluded_precisions: list[StrictStr] = []
    calibration_sampling_size: Count | Annotated[list[Count], Field(min_length=1)] | None = None
    recipes: dict[str, Any] = {}
    first_last: StrictStr | None = None
    accuracy_criterion: AccuracyCriterion = AccuracyCriterion()
    tuning_criterion: TuningCriterion = TuningCriterion()

    def __init__(self, *positional: Any, **values: Any) -> None:
        if positional:
            raise ConfigError(
                f"configuration: keywords are expected, as in precision='w4a8', not {quoted(positional[0])}; "
                "PostTrainingQuantConfig.from_dict reads a dictionary"
            )
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_explain(error)) from None

    @field_validator("op_type_dict", "op_name_dict")
    @classmethod
    def _check_ops(cls, value: dict[str, Any], info: Any) -> dict[str, Any]:
        for key, request in value.items():
            where = f"{info.field_name}[{quoted(key)}]"
            if not isinstance(request, str):
                parse_fields(request, where)
            elif not request:
                raise ConfigError(f"{where}: the precision is empty")
        return value

    @field_validator("recipes", mode="before")
    @classmethod
    def _check_recipes(cls, value: Any) -> dict[str, Any]:
        return read_recipes(value)

    @property
    def float_ends(self) -> list[str]:
        """The recipes that leave the first or the last op float."""
        return [name for name in ENDS if self.recipes.get(name) is False]

    @property
    def recovery(self) -> list[dict[str, Any]]:
        """The recovery methods that are asked for, in order, each with True or its options."""
        wanted = {name: value for name, value in self.recipes.items() if name not in ENDS and value is not False}
        return [{name: value} for name, value in wanted.items()]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PostTrainingQuantConfig":
        """Build from a mapping of the fields.

        Raises:
            ConfigError: as for the constructor.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"configuration: expected a mapping, found {quoted(values)}")
        wrong = [key for key in values if not isinstance(key, str)]
        if wrong:
            raise ConfigError(f"configuration: a key must be a name, not {quoted(wrong[0])}")
        return cls(**values)


def _explain(error: ValidationError) -> str:
    """One line for each thing that pydantic found wrong."""
    lines = []
    for problem in error.errors():
        path = [str(part) for part in problem["loc"]]
        key = path[0]
        if problem["type"] == "extra_forbidden":
            allowed = list(PostTrainingQuantConfig.model_fields)
            lines.append(f"unknown key {quoted(key)}{nearest(key, allowed)} (allowed: {', '.join(allowed)})")
        elif problem["type"] == "literal_error":
            choices = get_args(Approach)
            given = problem["input"]
            lines.append(
                f"{key}: unknown {quoted(given)}{nearest(str(given), choices)} (allowed: {', '.join(choices)})"
            )
        elif problem["type"] == "value_error":
            lines.append(f"{key}: {problem['ctx']['error']}")
        else:
            lines.append(f"{key}: {problem['msg'].lower()}, found {quoted(problem['input'])}")
    return "configuration: " + "; ".join(dict.fromkeys(lines))
