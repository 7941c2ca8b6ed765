"""When a tuned model is good enough, and how long to search."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationError, field_validator

from subbyte.errors import ConfigError, nearest, quoted

Loss = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Criterion(BaseModel):
    """A frozen model whose mistakes are ConfigErrors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError("; ".join(dict.fromkeys(self._explain(each) for each in error.errors()))) from None

    def _explain(self, problem: Any) -> str:
        key, name = str(problem["loc"][0]), type(self).__name__
        allowed = list(type(self).model_fields)
        if problem["type"] == "extra_forbidden":
            return f"{name}: unknown key {quoted(key)}{nearest(key, allowed)} (allowed: {', '.join(allowed)})"
        return f"{name}: {key}: {problem['msg'].lower()}, found {quoted(problem['input'])}"


class AccuracyCriterion(_Criterion):
    """How much worse than the float model a tuned one may be.

    Args:
        higher_is_better: whether a larger metric is a better one.
        criterion: whether `tolerable_loss` is a share of the float model's metric, or in the metric's own units.
        tolerable_loss: at most.
        confidence: with which that is shown, where the evaluation gives scores of samples; None estimates the loss.

    Raises:
        ConfigError: an unknown key, or a value of the wrong kind; a loss below zero would ask for more than the float
            model gives.
    """

    higher_is_better: StrictBool = True
    criterion: Literal["relative", "absolute"] = "relative"
    tolerable_loss: Loss = 0.01
    confidence: Annotated[float, Field(ge=0.5, lt=1)] | None = 0.9


class TuningCriterion(_Criterion):
    """How the search goes, and when it ends.

    Args:
        strategy: by name.
        strategy_kwargs: options of the strategy.
        timeout: in seconds; 0 ends with the first model that is good enough.
        max_trials: at most.
        objective: what to make small among the models that are good enough: a name, or several with weights.
    """

    strategy: StrictStr = "basic"
    strategy_kwargs: dict[StrictStr, Any] | None = None
    timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    max_trials: Annotated[int, Field(gt=0, strict=True)] = 100
    objective: StrictStr | dict[StrictStr, float] = "performance"

    @field_validator("objective", mode="before")
    @classmethod
    def _read_lists(cls, given: Any) -> Any:
        """`["size", "latency"]` and `{"objective": [...], "weight": [...]}`, as Intel Neural Compressor writes them."""
        lists = {"objective": given} if isinstance(given, list) else given
        if not isinstance(lists, dict) or not isinstance(lists.get("objective"), list):
            return given
        names = lists["objective"]
        weights = lists.get("weight") or [1.0] * len(names)
        unfit = set(lists) - {"objective", "weight"} or len(names) != len(weights) or len(set(names)) < len(names)
        if not names or unfit:
            raise ValueError("a list of names, each once, and under 'weight' as many numbers")
        return dict(zip(names, weights, strict=True))
