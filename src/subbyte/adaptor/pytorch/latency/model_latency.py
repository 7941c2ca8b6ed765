"""What a configuration takes on this machine: the sum of what its ops take."""

import hashlib
from collections.abc import Callable, Mapping, Set
from functools import partial
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
from subbyte.adaptor.pytorch.latency.stopwatch import Repeated, repeated
from subbyte.adaptor.pytorch.state import is_quantized
from subbyte.errors import CalibrationError
from subbyte.spec import OpConfig, OpKey, TuneConfig


class ModelLatency:
    """Of one model and one size of batch.

    Each call of an op is measured by itself, on the input that it has in a forward of the first calibration samples:
    float as PyTorch runs it, quantized as `use_kernels` does, a BatchNorm that belongs to it included. Calls that are
    alike in type, settings, shapes and configuration are measured once, when a configuration first has them, and kept
    in the machine's file.

    What is left of the float model's time beyond its ops' (functions that are never quantized, the model's own code)
    counts as the same in every configuration. Ops that the forward does not reach count nothing.

    Args:
        model: float; not changed.
        graph: its ops.
        ops: those that configurations speak of.
        fusions: that say which BatchNorms belong to an op.
        batch: the first of the calibration data.
        samples: of it in a forward.

    Raises:
        CalibrationError: the batch has fewer.
    """

    def __init__(
        self, model: nn.Module, graph: Graph, ops: Set[OpKey], fusions: Fusions, batch: Batch, samples: int
    ) -> None:
        if batch.samples < samples:
            raise CalibrationError(
                f"latency of {samples} samples at a time is asked for, and the first calibration batch has "
                f"{batch.samples}; give a larger one"
            )
        self._model = model
        self._ops = {op.info.key: op for op in graph if op.info.key in ops}
        self._fusions = fusions
        self._batch = batch.first(samples)
        self._device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
        self._file = LatencyFile(default_path(), machine(self._device))
        self._calls = calls_of_ops(model, graph, {op.name for op in self._ops.values()}, self._batch)
        self._found: dict[tuple[OpKey, OpConfig], float] = {}
        self._rest: float | None = None

    def of(self, config: TuneConfig) -> float:
        """Seconds of one forward, as its ops add up."""
        return self._remaining() + self._of_ops(config.op)

    def measured(self, model: nn.Module) -> float:
        """Seconds of one forward of a whole model, on kernels where it is converted; it is left as it was."""
        own = copied(model).eval()
        if is_quantized(own):
            use_kernels(own)
        batch = self._batch.copied()
        return self._seconds(repeated(partial(batch.run, own)))

    def _remaining(self) -> float:
        """What the float model takes beyond its ops."""
        if self._rest is None:
            given = OpCall(self._batch.args, self._batch.kwargs)
            what = f"{type(self._model).__name__} {_digest(self._model)} {given}"
            whole = self._known(what, self._whole)
            self._rest = max(whole - self._of_ops({}), 0.0)
        return self._rest

    def _whole(self) -> Repeated:
        return repeated(partial(self._batch.copied().run, copied(self._model).eval()))

    def _of_ops(self, configs: Mapping[OpKey, OpConfig]) -> float:
        return sum(self._of_op(key, configs.get(key, OpConfig())) for key in self._ops)

    def _of_op(self, key: OpKey, config: OpConfig) -> float:
        if (key, config) not in self._found:
            calls = self._calls.get(self._ops[key].name, [])
            self._found[key, config] = sum(self._of_call(self._ops[key], call, config) for call in calls)
        return self._found[key, config]

    def _of_call(self, op: Op, call: OpCall, config: OpConfig) -> float:
        if call.function is not None:
            name = f"{op.type} {call.function.__name__}"
            return self._known(f"{name} {call}: {config}", partial(function_alone, call, config))
        norm = self._model.get_submodule(op.norm) if op.norm else None
        alone = OpAlone(self._model.get_submodule(op.name), norm)
        what = f"{op.type}({alone.op.extra_repr()}) {_digest(alone)} {call}: {config}"
        return self._known(what, partial(module_alone, alone, call, config, self._fusions))

    def _known(self, what: str, make: Callable[[], Repeated]) -> float:
        """Seconds from the file, else measured."""
        seconds = self._file.get(what)
        if seconds is None:
            seconds = self._seconds(make())
            self._file.add(what, seconds)
        return seconds

    def _seconds(self, repeat: Repeated) -> float:
        with torch.no_grad():
            return stopwatch.seconds_of(repeat, self._device)


def _digest(model: nn.Module) -> str:
    """Tells settings, shapes and data types of a model from others."""
    return hashlib.sha256(repr(sorted(fingerprint(model).items())).encode()).hexdigest()[:8]
