"""How a training goes: what `train` does beside the model, the data and the loss."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, ValidationError

from subbyte.config import as_request
from subbyte.errors import ConfigError, nearest
from subbyte.training.optimizers import check_lr_schedule, check_optimizer

Share = Annotated[StrictFloat, Field(gt=0, lt=1)]


class Stage(BaseModel):
    """From when on the model has another configuration.

    Args:
        at: the share of training that is done then, above 0 and below 1.
        config: as for `prepare_qat`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: Share
    config: Any

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        as_request(self.config)


class TrainingPlan(BaseModel):
    """How a training goes. Shares are of all its steps.

    Args:
        epochs: how often the data is gone through.
        optimizer: of torch.optim, a name, or `{name: options}`, as in `{"SGD": {"lr": 0.01, "momentum": 0.9}}`.
        lr_schedule: of torch.optim.lr_scheduler, likewise; it counts steps, and where it asks for their number
            (`T_max`, `total_steps`) and none is given, that of the whole training is used. None keeps the rate.
        stages: configurations after the one that the model has, each from a share of the steps on.
        clip_gradients: the largest norm of all gradients together; None lets them be.
        relative_steps: whether scales move in proportion to what they are (`training.RelativeSteps`); None: where
            the optimizer's steps have a size of their own, as Adam's.
        freeze_batch_norm: from this share on the statistics of BatchNorms stay; None lets them move.
        reestimate_batch_norm: whether they are found anew at the end, on the calibration data.
        keep: which epoch's model comes back: the last, or of those at the last configuration the one with the best
            metric (which is then no fair estimate on data that has chosen it).
        higher_is_better: of the metric.

    Raises:
        ConfigError: an unknown key, a wrong value, an unknown optimizer or option, stages out of order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: Annotated[StrictInt, Field(gt=0)]
    optimizer: Any = "AdamW"
    lr_schedule: Any = None
    stages: list[Stage] = []
    clip_gradients: Annotated[StrictFloat | StrictInt, Field(gt=0)] | None = None
    relative_steps: StrictBool | None = None
    freeze_batch_norm: Share | None = None
    reestimate_batch_norm: StrictBool = False
    keep: Literal["last", "best"] = "last"
    higher_is_better: StrictBool = True

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_explain(error)) from None
        shares = [stage.at for stage in self.stages]
        if shares != sorted(set(shares)):
            raise ConfigError(f"stages: each begins later than the one before it, not at {shares}")
        check_optimizer(self.optimizer)
        if self.lr_schedule is not None:
            check_lr_schedule(self.lr_schedule)


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        inside = problem["loc"][0] == "stages" and len(problem["loc"]) > 1
        allowed = list((Stage if inside else TrainingPlan).model_fields)
        key = str(problem["loc"][-1])
        if problem["type"] == "extra_forbidden":
            lines.append(f"{path}: unknown key {key!r}{nearest(key, allowed)} (allowed: {', '.join(allowed)})")
        elif problem["type"] == "missing":
            lines.append(f"{path}: it is missing")
        else:
            lines.append(f"{path}: {problem['msg'].lower()}, found {problem['input']!r}")
    return "training plan: " + "; ".join(dict.fromkeys(lines))
