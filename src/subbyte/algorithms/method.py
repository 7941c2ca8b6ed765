"""What a method that recovers accuracy is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Generator

from subbyte.adaptor.pytorch.prepared import PreparedModel, WeightedOp
from subbyte.errors import RecoveryError, nearest


class Stage(IntEnum):
    """When a method can run: methods of a later stage build on what those of earlier ones left."""

    FLOAT = 0
    """changes the float model without changing its function; all ranges are found anew after it"""
    RANGE = 1
    """finds scales and zero points"""
    ROUNDING = 2
    """chooses codes, for scales that are there"""
    STATISTICS = 3
    """renews statistics that belong to what came out"""
    CORRECTION = 4
    """corrects what is left"""


class RecoveryMethod(BaseModel, ABC):
    """A method, with its options as fields; subclass it and `register_algorithm` to add another.

    A method works on a prepared model, unit by unit: what a unit has changed is kept where a run is interrupted. It
    reads and writes through PreparedModel, takes all randomness from the generator it is given, and leaves the model
    in eval().

    Class attributes:
        stage: see Stage.
        excludes: the names of methods of the same stage that would undo this one or that this one would undo.
        needs_data: whether it reads calibration data.
        alone: whether it takes no other methods beside it.

    Args:
        unsupported: what to do with an op for which the method has no meaning: `error`, or `skip` it.

    Raises:
        RecoveryError: an unknown option or a wrong value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str] = ""
    stage: ClassVar[Stage]
    excludes: ClassVar[frozenset[str]] = frozenset()
    needs_data: ClassVar[bool] = True
    alone: ClassVar[bool] = False

    unsupported: Literal["error", "skip"] = "error"

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise RecoveryError(f"recovery method {self.name!r}: {_explain(error, type(self))}") from None

    def obstacle(self, op: WeightedOp) -> str:
        """Why the method has no meaning for an op; empty where it has one."""
        return ""

    def supported(self, model: PreparedModel) -> list[str]:
        """The ops that the method works on, in the order they run.

        Raises:
            RecoveryError: it has no meaning for one, and `unsupported` is `error`; or for any.
        """
        ops = {**model.ops, **model.projections}
        obstacles = {name: self.obstacle(op) for name, op in ops.items()}
        refused = {name: why for name, why in obstacles.items() if why}
        if refused and self.unsupported == "error":
            name, why = next(iter(refused.items()))
            raise RecoveryError(
                f"recovery method {self.name!r} has no meaning for op {name!r} ({ops[name].type}): {why}; leave the op "
                f"float, or pass over such ops with {{{self.name!r}: {{'unsupported': 'skip'}}}}"
            )
        if refused and len(refused) == len(ops):
            raise RecoveryError(
                f"recovery method {self.name!r} has no meaning for any op: {next(iter(refused.values()))}"
            )
        return [name for name in ops if not obstacles[name]]

    def chosen(self, model: PreparedModel) -> Sequence["RecoveryMethod"]:
        """What runs in its place, by what the model shows; itself unless told otherwise."""
        return [self]

    def quick(self) -> "RecoveryMethod":
        """Return a cheaper form, which shows on a configuration about what the method can do; itself by default."""
        return self

    def units(self, model: PreparedModel) -> Sequence[str]:
        """The names of the parts that it works on one after another; one, the whole model, unless told otherwise."""
        return [""]

    @abstractmethod
    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        """Work on one unit.

        Args:
            model: changed.
            unit: one of `units`.
            generator: on the CPU; the same for the same seed, method and unit.
        """

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.model_dump(exclude_defaults=True).items())
        return f"{self.name}({options})" if options else self.name


def _explain(error: ValidationError, method: type[RecoveryMethod]) -> str:
    allowed = list(method.model_fields)
    lines = []
    for problem in error.errors():
        key = str(problem["loc"][0]) if problem["loc"] else ""
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown option {key!r}{nearest(key, allowed)} (allowed: {', '.join(allowed)})")
        else:
            lines.append(f"{key}: {problem['msg'].lower()}, found {problem['input']!r}".removeprefix(": "))
    return "; ".join(dict.fromkeys(lines))
