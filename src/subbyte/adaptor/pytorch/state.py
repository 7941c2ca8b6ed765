"""What a quantized model carries beside its modules."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from subbyte.adaptor.pytorch.fingerprint import Fingerprint
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.phase import Run
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer, DynamicQuantizer, InputQuantizer
from subbyte.adaptor.pytorch.reads import Read, quantized_activation
from subbyte.adaptor.pytorch.swap import Swapped
from subbyte.errors import ModelError
from subbyte.spec import OpConfig, OpKey, TuneConfig

STATE = "subbyte_state"
Described = tuple[str, str]


class QuantizationState(nn.Module):
    """Lives in a quantized model as `subbyte_state`: input quantizers, configuration, recording.

    Args:
        config: what every op gets.
        graph: what discovery recorded.
        float_bytes: the size of the float model's parameters and buffers.
        float_parameters: The number of values of each of its parameters, shared ones once.
        fingerprint: of the float model's structure.
    """

    def __init__(
        self, config: TuneConfig, graph: Graph, *, float_bytes: int, float_parameters: Mapping[str, int],
        fingerprint: Fingerprint,
    ) -> None:  # fmt: skip
        super().__init__()
        self.config = config
        self.graph = graph
        self.float_bytes = float_bytes
        self.float_parameters = float_parameters
        self.fingerprint = fingerprint
        self.run = Run()
        self.found_later: dict[str, OpConfig] | None = None  # by type, until the first forward of a model without data
        self.structure: dict[str, Described] = {}  # of the converted model
        self.quantizers = nn.ModuleDict()
        self.weight_sqnr: dict[str, float] = {}
        self.weights_measured: dict[str, tuple[int, int] | None] = {}  # where and in which version each was
        self.activation_sqnr: dict[str, float] = {}
        self.input_keys: dict[str, list[str]] = {}
        self.asked: Any = None  # of training: what every later configuration of the model is to go by, too
        self.moved_by: list[str] = []  # methods that changed what ops give to each other, and not what the model does

    @property
    def converted(self) -> bool:
        """Return whether the model is converted."""
        return self.run.converted

    def input_quantizer(self, op: str, read: Read, config: OpConfig) -> InputQuantizer:
        """The quantizer of a value: one for each producer and spec, shared by all that read it.

        Args:
            op: the op that reads the value.
            read: which.
            config: of the op; its activation is quantized.
        """
        spec = quantized_activation(config)
        assert spec is not None
        key = read.key(op, config).replace(".", "/")  # the name of a submodule holds no dot
        if key not in self.quantizers:
            label = f"{op} (input {read.slot})"
            self.quantizers[key] = (
                DynamicQuantizer(label, spec, self.run)
                if config.quant_mode == "dynamic"
                else ActivationQuantizer(label, spec, self.run, read.value(op))
            )
        keys = self.input_keys.setdefault(op, [])
        if key not in keys:
            keys.append(key)
        return self.quantizers[key]  # type: ignore[return-value]

    def drop_inputs(self, op: str) -> None:
        """Forget the quantizers of an op's inputs, except where another op reads the same value by them."""
        for key in self.input_keys.pop(op, []):
            if not any(key in keys for keys in self.input_keys.values()):
                del self.quantizers[key]

    def static_quantizers(self) -> Iterator[ActivationQuantizer]:
        """Those that need calibration."""
        for quantizer in self.quantizers.values():
            if isinstance(quantizer, ActivationQuantizer):
                yield quantizer

    def requested(self, key: OpKey) -> Any:
        """The configuration of an op; None where it stays float."""
        return self.config.op.get(key)


def state_of(model: Any) -> QuantizationState:
    """The state of a quantized model.

    Raises:
        ModelError: the model is not quantized, or no module at all.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a quantized torch.nn.Module, got {type(model).__name__}")
    state = getattr(model, STATE, None)
    if isinstance(state, QuantizationState):
        return state
    inner = getattr(model, "module", None)
    if isinstance(inner, nn.Module) and STATE in vars(inner):
        raise ModelError(f"this {type(model).__name__} is a wrapper around a quantized model; give its .module")
    raise ModelError("this model is not quantized; call subbyte.quantize or subbyte.prepare first")


def hold(model: nn.Module, state: QuantizationState) -> None:
    """Put the state where `state_of`, `.to()`, `state_dict()`, copies and pickles find it.

    It is a submodule of the first op, not of the model: Sequential, and any code that goes through
    `children()`, would run it as a layer.
    """
    first = next((op.name for op in state.graph if op.kind == "module"), "")
    setattr(model.get_submodule(first), STATE, state)
    model.__dict__[STATE] = state


def is_quantized(model: Any) -> bool:
    """Whether a model, or a part of it, is prepared or converted, or is a part of such a model."""
    return isinstance(model, nn.Module) and any(isinstance(module, Swapped) for module in model.modules())
