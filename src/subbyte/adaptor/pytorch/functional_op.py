"""What the function mode must know of a torch function that is an op of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from subbyte.adaptor.pytorch.inputs import Slots
from subbyte.spec import Role

Function = Callable[..., Any]


class FunctionalOp(ABC):
    """One kind of torch function. Holds no state.

    Class attributes:
        shares_params: whether all inputs have one quantizer (cat).
        needs_all: whether the op is quantized only where every tensor input is a signal (see discovery): so masks,
            position tables and other constants that are added or multiplied stay as they are.
    """

    op_type: ClassVar[str]
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
    return name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
