"""One op by itself, float or quantized and on kernels, ready to be timed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.comparison.following import copies
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.fusion import Fusions
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.half import in_half
from subbyte.adaptor.pytorch.inputs import Slots
from subbyte.adaptor.pytorch.kernels import use_kernels
from subbyte.adaptor.pytorch.latency.op_call import OpCall
from subbyte.adaptor.pytorch.latency.stopwatch import Repeated, repeated
from subbyte.adaptor.pytorch.phase import Run
from subbyte.adaptor.pytorch.prepare import quantize
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer, DynamicQuantizer, InputQuantizer
from subbyte.adaptor.pytorch.reads import quantized_activation
from subbyte.spec import OpConfig, OpInfo, TensorSpec, TuneConfig


class OpAlone(nn.Module):
    """A module and the BatchNorm that belongs to it, as a model.

    Args:
        op: the module; not copied.
        norm: None where there is none.

    Attributes:
        calls: of the op in a forward: what a model costs beside its ops shall be a small part of their time.
    """

    def __init__(self, op: nn.Module, norm: nn.Module | None) -> None:
        super().__init__()
        self.op = op
        self.norm = norm
        self.calls = 1

    def forward(self, *args: Any) -> Any:
        for _ in range(self.calls):
            y = self.op(*args)
            if self.norm is not None:
                y = self.norm(y)
        return y


def module_alone(alone: OpAlone, call: OpCall, config: OpConfig, fusions: Fusions) -> Repeated:
    """A call of a module, in the precision that `config` says.

    Args:
        alone: float; not changed.
        call: what it is given.
        config: of the op.
        fusions: that say whether a BatchNorm is computed as part of it.
    """
    model: Any = copied(alone).eval()
    if not config.is_unchanged:
        model = use_kernels(quantize(alone, _Everywhere(config, tuple(fusions)), [Batch(call.args)]).eval())

    def repeat(times: int) -> None:
        model.calls = times
        model(*call.args)

    return repeat


@dataclass(frozen=True)
class _Everywhere:
    """A resolver that gives all ops the same."""

    config: OpConfig
    fusions: Fusions
    strict: bool = False

    def check(self, graph: Graph, model: nn.Module, /) -> None:
        """The capability was checked when the whole model was prepared."""

    def __call__(self, ops: Sequence[OpInfo], /) -> TuneConfig:
        return TuneConfig({op.key: self.config for op in ops if op.quantizable})


def function_alone(call: OpCall, config: OpConfig) -> Repeated:
    """A call of a function, its inputs quantized or cast as `config` says."""
    op, function = call.op, call.function
    assert op is not None
    assert function is not None
    args, kwargs = copies(call.args), copies(dict(call.kwargs))  # it may write into them
    spec = quantized_activation(config)
    if config.half is not None:
        half = config.half.torch_dtype
        return repeated(lambda: in_half(function, args, kwargs, half))
    if spec is None:
        return repeated(lambda: function(*args, **kwargs))
    count = op.slot_count(op.inputs(args, kwargs))
    run = Run("observe")
    slots: Slots = tuple(_quantizer(index, spec, config, run) for index in range(count))
    with torch.no_grad():
        op.run(function, copies(args), copies(kwargs), slots)
    for quantizer in slots:
        if isinstance(quantizer, ActivationQuantizer):
            quantizer.calibrate()
    run.phase = "quantize"
    return repeated(lambda: op.run(function, args, kwargs, slots))


def _quantizer(index: int, spec: TensorSpec, config: OpConfig, run: Run) -> InputQuantizer:
    kind = DynamicQuantizer if config.quant_mode == "dynamic" else ActivationQuantizer
    return kind(f"input {index}", spec, run).eval()
