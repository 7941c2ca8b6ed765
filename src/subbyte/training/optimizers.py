"""Optimizers and learning-rate schedules by name."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler

from subbyte.errors import ConfigError, listing, nearest

# What takes more than parameters and their gradients: a closure, sparse gradients, matrices alone, a metric, schedules.
_OTHERS = {
    *("Optimizer", "LBFGS", "SparseAdam", "Muon"),
    *("LRScheduler", "ReduceLROnPlateau", "ChainedScheduler", "SequentialLR"),
}
_OPTIMIZERS = {
    name: found
    for name, found in vars(optim).items()
    if isinstance(found, type) and issubclass(found, optim.Optimizer) and name not in _OTHERS
}
_SCHEDULES = {
    name: found
    for name, found in vars(optim.lr_scheduler).items()
    if isinstance(found, type) and issubclass(found, LRScheduler) and name not in _OTHERS and not name.startswith("_")
}
_LENGTHS = ("total_steps", "T_max")  # how the number of all steps is called


def optimizer_of(asked: Any, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """The optimizer that is asked for, of these parameters.

    Raises:
        ConfigError: the name or an option is unknown, or an option is wrong.
    """
    kind, options = _chosen("optimizer", asked, _OPTIMIZERS)
    try:
        optimizer: optim.Optimizer = kind(parameters, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {kind.__name__}: {error}") from error
    return optimizer


def lr_schedule_of(asked: Any, optimizer: optim.Optimizer, steps: int) -> LRScheduler:
    """The learning-rate schedule that is asked for, over so many steps.

    Raises:
        ConfigError: the name or an option is unknown, or an option is wrong.
    """
    kind, options = _chosen("lr_schedule", asked, _SCHEDULES)
    taken = inspect.signature(kind).parameters
    told = {"total_steps", "epochs", "steps_per_epoch"} & set(options)  # OneCycleLR knows it otherwise
    lengths = {} if told else {name: steps for name in _LENGTHS if name in taken and name not in options}
    try:
        schedule: LRScheduler = kind(optimizer, **(lengths | options))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"lr_schedule {kind.__name__}: {error}") from error
    return schedule


def check_optimizer(asked: Any) -> None:
    """Refuse what `optimizer_of` would.

    Raises:
        ConfigError: the same.
    """
    optimizer_of(asked, [_nothing()])


def check_lr_schedule(asked: Any) -> None:
    """Refuse what `lr_schedule_of` would, and an option that fails in the first step.

    Raises:
        ConfigError: the same.
    """
    optimizer = optim.SGD([_nothing()], lr=0.1)
    _take_steps(lr_schedule_of(asked, optimizer, steps=1000), optimizer, 1)


def check_length(asked: Any, optimizer: Any, steps: int) -> None:
    """Refuse a learning-rate schedule that fails on the way, as one does that is shorter than the training.

    Args:
        asked: the schedule, as for `lr_schedule_of`.
        optimizer: as for `optimizer_of`.
        steps: of the training.

    Raises:
        ConfigError: with what it says.
    """
    chosen = optimizer_of(optimizer, [_nothing()])
    _take_steps(lr_schedule_of(asked, chosen, steps), chosen, steps)


def _take_steps(schedule: LRScheduler, optimizer: optim.Optimizer, steps: int) -> None:
    optimizer.step()  # schedules warn where none was taken before theirs
    for step in range(1, steps + 1):
        try:
            schedule.step()
        except Exception as error:  # options that are no numbers fail in whatever is computed with them
            raise ConfigError(
                f"lr_schedule: {type(schedule).__name__} fails in step {step} of {steps}: {error}"
            ) from error


def _nothing() -> nn.Parameter:
    return nn.Parameter()


def _chosen(what: str, asked: Any, known: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    name, options = (asked, {}) if isinstance(asked, str) else _only(what, asked)
    if name not in known:
        raise ConfigError(f"{what}: {name!r} is unknown{nearest(str(name), known)} (known: {listing(known)})")
    allowed = list(inspect.signature(known[name]).parameters)[1:]
    for key in options:
        if key not in allowed:
            raise ConfigError(
                f"{what} {name}: unknown option {key!r}{nearest(str(key), allowed)} (options: {', '.join(allowed)})"
            )
    return known[name], dict(options)


def _only(what: str, asked: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(asked, Mapping) and len(asked) == 1:
        ((name, options),) = asked.items()
        if isinstance(options, Mapping):
            return name, options
    raise ConfigError(f"{what}: a name or {{name: options}} is expected, not {asked!r}")
