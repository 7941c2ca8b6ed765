"""What an op reads through quantizers, as its configuration says."""

from collections.abc import Iterator
from dataclasses import dataclass

from subbyte.adaptor.pytorch.functional_ops import FUNCTIONAL_TYPES
from subbyte.adaptor.pytorch.graph import Call, Op
from subbyte.spec import OpConfig, TensorSpec

EVERYWHERE = None


@dataclass(frozen=True)
class Read:
    """One value that an op reads.

    Args:
        site: the place of the call; EVERYWHERE where all calls share the quantizer.
        slot: which input.
        producer: what made the value; None where that is not known, or decides nothing.
    """

    site: str | None
    slot: str
    producer: str | None

    def value(self, op: str) -> str:
        """Names what is read: what made it, where that is known, else the input of the op."""
        return f"{op}:{self.slot}" if self.producer is None else self.producer

    def key(self, op: str, config: OpConfig) -> str:
        """Names the quantizer: that of a value and a spec, or the op's own."""
        if self.producer is None or config.quant_mode == "dynamic":
            return f"{op}:{self.slot}"
        return f"{self.producer} {config.activation}"


def quantized_activation(config: OpConfig | None) -> TensorSpec | None:
    """How an op's inputs are quantized; None where they stay float."""
    return config.activation if config is not None and config.quantizes_inputs else None


def reads(op: Op, config: OpConfig) -> Iterator[Read]:
    """Every value that an op reads through a quantizer.

    Args:
        op: as recorded; no recurrent one, whose matrices read each for itself.
        config: of the op.
    """
    if quantized_activation(config) is None:
        return
    if op.kind == "function":
        for call in op.calls:
            yield from reads_of_call(op, call)
    elif config.quant_mode == "dynamic":
        yield Read(EVERYWHERE, "0", None)
    elif not op.name and op.calls:  # the model itself is the op: called from wherever it is used
        yield Read(EVERYWHERE, "0", op.calls[0].producers[0])
    else:
        for index, call in enumerate(op.calls):
            yield Read(call.site, "0" if index == 0 else f"0@{index}", call.producers[0])


def reads_of_call(op: Op, call: Call) -> Iterator[Read]:
    """Those of one call of a function; inputs that share a range are read as one."""
    if call.quantizable:
        shared = FUNCTIONAL_TYPES[op.type].shares_params
        for slot, producer in enumerate((None,) if shared else call.producers):
            yield Read(call.site, str(slot), producer)
