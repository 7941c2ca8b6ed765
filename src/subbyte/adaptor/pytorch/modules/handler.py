"""What the adaptor must know of a module type to quantize it; adding a type is one small file."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn

from subbyte.adaptor.pytorch.functional_op import ACTIVATION_FORMS
from subbyte.adaptor.pytorch.inputs import quantized
from subbyte.adaptor.pytorch.quantizer import InputQuantizer
from subbyte.capability import Forms
from subbyte.errors import ConfigError
from subbyte.numerics import Learned
from subbyte.spec import Role, TensorSpec


class ModuleHandler(ABC):
    """One type of module. Handlers hold no state: everything is in the module.

    Class attributes:
        op_type: as in `Conv2d`.
        role: as in OpInfo.
        holds_weight: whether it multiplies by a weight, quantized or not: data flow goes by that.
        is_product: whether it is a convolution or a linear map.
        forms: by mode, which of its tensors are quantized; nothing where the type always stays in float.
    """

    op_type: ClassVar[str]
    forms: ClassVar[Forms] = ACTIVATION_FORMS
    role: ClassVar[Role] = "other"
    holds_weight: ClassVar[bool] = False
    is_product: ClassVar[bool] = False

    def check(self, module: nn.Module, name: str) -> None:  # noqa: B027 (most types have nothing to refuse)
        """Refuse a module of this type that cannot be quantized.

        Raises:
            ModelError: why.
        """

    def weights(self, module: Any) -> list[Any]:
        """The parameters that are quantized; of a converted module what stands in their place."""
        return []

    def quantized(self, x: Tensor, quantizer: InputQuantizer | None) -> Tensor:
        """The input that the function of a module without weight is computed of."""
        return quantized(x, quantizer)

    def macs(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> int:
        """Multiply-accumulates of the recorded call."""
        return 0

    def is_depthwise(self, module: nn.Module) -> bool:
        """Whether each output channel reads one input channel."""
        return False


class WeightedHandler(ModuleHandler):
    """A type with a weight: a linear map of its input, plus a bias for each output channel."""

    role = "weighted"
    holds_weight = True
    is_product = True
    forms: ClassVar[Forms] = {
        "static": frozenset({"weight", "activation"}),
        "dynamic": frozenset({"weight", "activation"}),
        "weight_only": frozenset({"weight"}),
    }
    channel_axis: ClassVar[int] = 0
    group_axis: ClassVar[int] = 1
    takes_activation: ClassVar[bool] = True
    norm_types: ClassVar[tuple[type[nn.Module], ...]] = ()

    def weights(self, module: Any) -> list[Any]:
        return [module.weight]

    @abstractmethod
    def apply(self, module: Any, x: Tensor, weight: Tensor, *extra: Any) -> Tensor:
        """The linear map, without bias. `extra`: what else the module's forward takes."""

    def takes_learned(self, module: Any, x: Tensor) -> bool:
        """Whether `apply_learned` computes what `apply` does of this input."""
        return False

    def apply_learned(self, module: Any, x: Learned, weight: Learned) -> Tensor:
        """The same of quantized values with learned scales, as one node of autograd."""
        raise NotImplementedError(f"{type(self).__name__} takes no learned scales")

    def check_spec(self, module: Any, spec: TensorSpec, name: str) -> None:
        """Refuse a weight spec that this module cannot have.

        Raises:
            ConfigError: why.
        """
        axis = spec.with_axis(self.channel_axis, self.group_axis).axis
        expected = {"per_channel": self.channel_axis, "per_group": self.group_axis}.get(spec.granularity.kind)
        if expected is not None and axis != expected:
            raise ConfigError(
                f"op {name!r}: {spec.granularity} of a {self.op_type} weight runs along axis {expected}, not {axis}"
            )
        if spec.granularity.kind == "per_token":
            raise ConfigError(f"op {name!r}: a weight has no tokens; use per_tensor, per_channel or per_group(n)")

    def output_channels(self, module: Any) -> int:
        """How many output channels there are."""
        return int(module.weight.shape[self.channel_axis])

    def channel_scale(self, module: Any, scale: Tensor) -> Tensor:
        """The weight's scale (per tensor or per channel) for each output channel: [] or [channels]."""
        return scale.reshape(-1) if scale.ndim else scale

    def over_output(self, vector: Tensor) -> Tensor:
        """A value per output channel [channels], in a shape that broadcasts against the output."""
        return vector

    def as_matrix(self, module: Any, weight: Tensor) -> Tensor:
        """A weight as matrices [groups, output channels of a group, inputs]; `columns` are what they multiply.

        Raises:
            ConfigError: the map is not of this form.
        """
        raise ConfigError(f"a {self.op_type} is no product of a matrix and its input")

    def from_matrix(self, module: Any, matrix: Tensor) -> Tensor:
        """The way back from `as_matrix`: of the shape of the module's weight."""
        raise ConfigError(f"a {self.op_type} is no product of a matrix and its input")

    def columns(self, module: Any, x: Tensor) -> Tensor:
        """What the matrices meet in a call with input x: [groups, inputs, products]."""
        raise ConfigError(f"a {self.op_type} is no product of a matrix and its input")

    @abstractmethod
    def group_terms(
        self, module: Any, x: Tensor, grid: Tensor, scale: Tensor, size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The groups of a per_group weight in storage order: input part, weight part, scale [channels]."""
