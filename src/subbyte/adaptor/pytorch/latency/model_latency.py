"""What a configuration takes on this machine: the sum of what its ops take."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

import torch
from torch import nn

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.fingerprint import fingerprint
from subbyte.adaptor.pytorch.fusion import Fusions
from subbyte.adaptor.pytorch.graph import Graph, Op
from subbyte.adaptor.pytorch.kernels import use_kernels
from subbyte.adaptor.pytorch.latency import stopwatch
from subbyte.adaptor.pytorch.latency.alone import OpAlone, function_alone, module_alone
from subbyte.adaptor.pytorch.latency.latency_file import LatencyFile, default_path, machine
from subbyte.adaptor.pytorch.latency.op_call import OpCall, calls_of_ops
from subbyte.adaptor.pytorch.latency.stopwatch import Repeated, Timing, repeated
from subbyte.adaptor.pytorch.state import is_quantized
from subbyte.spec import OpConfig, OpKey, TuneConfig


@dataclass(frozen=True)
class Reference:
    """A quantized model, by which is known what quantized models take beyond their ops.

    Args:
        config: of all ops that configurations speak of.
        quantize: makes it.
    """

    config: TuneConfig
    quantize: Callable[[TuneConfig], nn.Module]


class ModelLatency:
    """Of one model and one size of batch.

    Each call of an op is measured by itself, on the input that it has in a forward of the first calibration samples:
    float as PyTorch runs it, quantized as `use_kernels` does, a BatchNorm that belongs to it included. Calls that are
    alike in type, settings, shapes and configuration are measured once, when a configuration first has them, and kept
    in the machine's file.

    What the float model takes beyond its ops (functions that are never quantized, the model's own code) counts in every
    configuration. What a quantized one takes beyond that (it finds the quantizers of functions) is measured on the
    reference, and each quantized op bears its share. Ops that the forward does not reach count nothing.

    Args:
        model: float; not changed.
        graph: its ops.
        fusions: that say which BatchNorms belong to an op.
        batch: the inputs of one forward.
        reference: a quantized model.
    """

    def __init__(self, model: nn.Module, graph: Graph, fusions: Fusions, batch: Batch, reference: Reference) -> None:
        self._model = model
        self._ops = {op.info.key: op for op in graph if op.info.key in reference.config.op}
        self._fusions = fusions
        self._batch = batch
        self._reference = reference
        self._device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
        self._file = LatencyFile(default_path(), machine(self._device))
        self._calls = calls_of_ops(model, graph, {op.name for op in self._ops.values()}, self._batch)
        self._found: dict[tuple[OpKey, OpConfig], Timing] = {}

    def of(self, config: TuneConfig) -> float:
        """Seconds of one forward, as its ops add up."""
        quantized = sum(not config.op.get(key, OpConfig()).is_unchanged for key in self._ops)
        return self._rest + self._of_ops(config) + (quantized * self._share if quantized else 0.0)

    def measured(self, model: nn.Module) -> float:
        """Seconds of one forward of a whole model, on kernels where it is converted; it is left as it was."""
        return self._timed(self._forward(model)).seconds

    def spread(self, key: OpKey, config: OpConfig) -> float:
        """Return the standard error of what one op takes in a forward."""
        return self._of_op(key, config).spread if key in self._ops else 0.0

    def _forward(self, model: nn.Module) -> Repeated:
        own = copied(model).eval()
        if is_quantized(own):
            use_kernels(own)
        return repeated(partial(self._batch.copied().run, own))

    @cached_property
    def _rest(self) -> float:
        """What the float model takes beyond its ops."""
        whole = self._known(self._whole, partial(self._forward, self._model)).seconds
        return max(whole - self._of_ops(TuneConfig({})), 0.0)

    @cached_property
    def _share(self) -> float:
        """What each op adds to the rest by being quantized."""
        config = self._reference.config
        described = "; ".join(f"{key}: {each}" for key, each in config.op.items())
        whole = self._known(
            f"{self._whole}: {_digest(described)}", lambda: self._forward(self._reference.quantize(config))
        ).seconds
        count = sum(not each.is_unchanged for each in config.op.values())
        return max(whole - self._rest - self._of_ops(config), 0.0) / max(count, 1)

    @property
    def _whole(self) -> str:
        settings = repr(sorted(fingerprint(self._model).items()))
        return f"{type(self._model).__name__} {_digest(settings)} {OpCall(self._batch.args, self._batch.kwargs)}"

    def _of_ops(self, config: TuneConfig) -> float:
        return sum(self._of_op(key, config.op.get(key, OpConfig())).seconds for key in self._ops)

    def _of_op(self, key: OpKey, config: OpConfig) -> Timing:
        if (key, config) not in self._found:
            calls = [self._of_call(self._ops[key], call, config) for call in self._calls.get(self._ops[key].name, [])]
            # Calls that are alike are measured once, so their errors add up.
            self._found[key, config] = Timing(sum(each.seconds for each in calls), sum(each.spread for each in calls))
        return self._found[key, config]

    def _of_call(self, op: Op, call: OpCall, config: OpConfig) -> Timing:
        if call.function is not None:
            name = f"{op.type} {call.function.__name__}"
            return self._known(f"{name} {call}: {config}", partial(function_alone, call, config))
        norm = self._model.get_submodule(op.norm) if op.norm else None
        alone = OpAlone(self._model.get_submodule(op.name), norm)
        settings = repr(sorted(fingerprint(alone).items()))
        what = f"{op.type}({alone.op.extra_repr()}) {_digest(settings)} {call}: {config}"
        return self._known(what, partial(module_alone, alone, call, config, self._fusions))

    def _known(self, what: str, make: Callable[[], Repeated]) -> Timing:
        """Seconds from the file, else measured."""
        found = self._file.get(what)
        if found is None:
            found = self._timed(make())
            self._file.add(what, found)
        return found

    def _timed(self, repeat: Repeated) -> Timing:
        with torch.no_grad():
            return stopwatch.timing_of(repeat, self._device)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
