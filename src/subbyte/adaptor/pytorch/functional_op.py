"""What the function mode must know of a torch function that is an op of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from subbyte.adaptor.pytorch.inputs import Slots
from subbyte.capability import Forms
from subbyte.errors import ModelError
from subbyte.spec import Role

Function = Callable[..., Any]
ACTIVATION_FORMS: Forms = dict.fromkeys(("static", "dynamic"), frozenset({"activation"}))


class FunctionalOp(ABC):
    """One kind of torch function. Holds no state.

    Class attributes:
        forms: by mode, which of its tensors are quantized; nothing where the function always stays in float.
        shares_params: whether all inputs have one quantizer (cat).
        needs_all: whether the op is quantized only where every tensor input is a signal (see discovery): so masks,
            position tables and other constants that are added or multiplied stay as they are.
    """

    op_type: ClassVar[str]
    forms: ClassVar[Forms] = ACTIVATION_FORMS
    role: ClassVar[Role] = "other"
    shares_params: ClassVar[bool] = False
    needs_all: ClassVar[bool] = True

    @abstractmethod
    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors that are quantized, one for each slot; fewer than two of add or mul mean: not an op."""

    @abstractmethod
    def run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> Any:
        """The function of the quantized inputs."""

    def slot_count(self, inputs: list[Tensor]) -> int:
        """How many quantizers the op has."""
        return 1 if self.shares_params else len(inputs)

    def is_weighted(self, parameters: list[bool]) -> bool:
        """Whether it multiplies by a weight, given which of its inputs are made of parameters."""
        return False

    def macs(self, inputs: list[Tensor], output: Tensor, args: tuple[Any, ...]) -> int:
        """Multiply-accumulates of one call."""
        return 0


def writes(function: Function) -> bool:
    """Whether a function writes into its first argument."""
    name = getattr(function, "__name__", "")
    in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    return in_place and name != "requires_grad_"


def written(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function writes into: its first argument, or the one it is given as `out`; None where it does not."""
    sets_data = getattr(function, "__name__", "") == "__set__" and getattr(function, "__self__", None) is Tensor.data
    return args[0] if args and (sets_data or writes(function)) else kwargs.get("out")


def written_in_forward(op_name: str, function: Function) -> ModelError:
    """What to raise where a model's own code writes into a weight that is quantized."""
    return ModelError(
        f"the weight of op {op_name!r} is written in forward ({function.__name__}), which a quantized weight cannot "
        "be; move that to the training loop"
    )
