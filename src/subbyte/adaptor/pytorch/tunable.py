"""A prepared model that goes from one configuration to another without being copied, recorded or calibrated again."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.base import Recover, TunableModel
from subbyte.adaptor.output_error import OutputError
from subbyte.adaptor.pytorch.attach import attach, detach, weighted_parts
from subbyte.adaptor.pytorch.batch import Batch, batches
from subbyte.adaptor.pytorch.collected import Collected, covers, further_observers, kind_of
from subbyte.adaptor.pytorch.configuration_cost import ConfigurationCost
from subbyte.adaptor.pytorch.convert import convert_in_place
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.coverage import check_promises
from subbyte.adaptor.pytorch.fingerprint import fingerprint
from subbyte.adaptor.pytorch.fusion import Fusions
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.hessian import hessian_traces
from subbyte.adaptor.pytorch.latency import ModelLatency, Reference
from subbyte.adaptor.pytorch.modules import handler_of
from subbyte.adaptor.pytorch.output_error import output_error
from subbyte.adaptor.pytorch.overflow import check_accumulators
from subbyte.adaptor.pytorch.prepare import prepare, quantize
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.adaptor.pytorch.unchanged import ModuleState
from subbyte.adaptor.pytorch.weight_ranges import WeightRanges
from subbyte.capability import Capability
from subbyte.config import PostTrainingQuantConfig, alternatives, resolve
from subbyte.errors import CalibrationError, EvaluationError, ModelError
from subbyte.spec import OpConfig, OpInfo, OpKey, TuneConfig

_SAMPLES = 32  # on which errors of outputs are measured
_FORWARDS = 8  # at most, of batches of few samples


class PyTorchTunableModel(TunableModel):
    """The interface's, for torch.nn.Module.

    Args:
        model: float; not changed.
        capability: what the ops can do.
        request: which alternatives they have.
        data: calibration data.
        first_last: as for `quantize`.

    Raises:
        CalibrationError: the data is missing, empty, unfit or not finite.
        ConfigError: the request does not fit the model.
        ModelError: the model cannot be quantized.
    """

    def __init__(
        self, model: nn.Module, capability: Capability, request: PostTrainingQuantConfig, data: Any,
        first_last: str | None = None,
    ) -> None:  # fmt: skip
        if data is None:
            raise CalibrationError("tuning needs calibration data: one batch at least, which need not be labelled")
        self.model = model
        self._capability = capability
        self._request, self._first_last = request, first_last
        self.batches: Sequence[Batch] = list(batches(data))
        space = _Space(capability, request, first_last)
        self._prepared = prepare(model, space, self.batches).eval()
        self._state = state_of(self._prepared)
        self._state.eval()
        self.alternatives: Mapping[OpKey, Sequence[OpConfig]] = space.alternatives
        self.ops: Sequence[OpInfo] = [op.info for op in self._state.graph if op.info.key in space.alternatives]
        self._collected = Collected(self._state.static_quantizers())
        for chosen in further_observers(self.alternatives, self._state.config.op):
            space.choose(chosen)
            self._collected.add(state_of(prepare(model, space, self.batches)).static_quantizers())
        self._ranges = WeightRanges(self._prepared, self._state.graph)
        self._cost = ConfigurationCost(self._prepared, self._state.graph, self._ranges, self._state.float_bytes)
        self._latencies: dict[int, ModelLatency] = {}  # by the samples of a forward
        self._samples = list(batches(self.batches[:_FORWARDS], _SAMPLES))
        self._expected: list[list[Tensor]] = []
        self._floats = list(_float_tensors(model, self._prepared))
        self._layers, self._float_layers = _layers(self._prepared), _layers(model)
        self._float_modules = [ModuleState.of(module) for module in model.modules()]
        self._float_gradients = {each: (each.requires_grad, each.grad) for each in model.parameters()}
        self.identity: Mapping[str, str] = {"model": _digest_of_model(model), "data": _digest_of_data(self.batches)}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self._capability, self._request, self.batches, self._first_last)

    def apply(self, config: TuneConfig) -> nn.Module:
        before = self._state.config.op
        changed = [key for key in self.alternatives if _given(config.op, key) != _given(before, key)]
        names = [name for name, _ in changed]
        with torch.inference_mode(False):
            self._undo_what_the_evaluation_did()
            try:
                self._attach(names, config)
            except Exception:
                # What is half attached must not pass for configured: the next configuration finds these ops float.
                self._attach(names, TuneConfig({**before, **dict.fromkeys(changed, OpConfig())}))
                raise
            finally:
                self._layers = _layers(self._prepared)
        return self._prepared

    def check_intact(self) -> None:
        if _layers(self._prepared) != self._layers:
            raise ModelError(
                "the evaluation changed the model's layers, which cannot be undone for the next trial; let it work on "
                "a copy: copy.deepcopy(model)"
            )

    def restore_float(self) -> None:
        if _layers(self.model) != self._float_layers:
            raise _changed_too_much("layers of the float model")
        for module in self._float_modules:
            module.put_back()
            module.put_back_hooks()
        for parameter, (requires_grad, grad) in self._float_gradients.items():
            if parameter.requires_grad != requires_grad:
                parameter.requires_grad_(requires_grad)
            parameter.grad = grad
        tensors = self.model.state_dict(keep_vars=True)
        for name, original, own, _ in self._floats:
            now = tensors.get(name)
            if now is not original or (now.shape, now.dtype) != (own.shape, own.dtype):
                raise _changed_too_much(f"tensor {name!r} of the float model")
            if not torch.allclose(own.to(now.device), now, rtol=0.0, atol=0.0, equal_nan=True):
                with torch.inference_mode(now.is_inference()), torch.no_grad():
                    now.copy_(own)

    def _undo_what_the_evaluation_did(self) -> None:
        """Back to eval(), and to the values that parameters and buffers have in the float model."""
        self._prepared.eval()
        with torch.no_grad():
            for index, (name, original, own, version) in enumerate(self._floats):
                # A BatchNorm in training writes its buffers without a new version.
                unseen = not isinstance(own, nn.Parameter) and not torch.equal(own, original)
                if own._version != version or unseen:
                    own.copy_(original)
                    self._floats[index] = (name, original, own, own._version)

    def _attach(self, names: Sequence[str], config: TuneConfig) -> None:
        """Make some ops what a configuration says, which the others are already."""
        state, ops = self._state, self._state.graph.ops
        for name in names:
            detach(self._prepared, state, name)
        state.config = config
        attach(self._prepared, state, names, calibrate_weights=False)
        for name in names:
            if ops[name].kind == "module":
                self._set_weight_ranges(name, config.op.get(ops[name].info.key, OpConfig()))
        self._calibrate_inputs(key for name in names for key in state.input_keys.get(name, []))
        if self._capability.strict:
            check_accumulators(self._prepared)

    def _set_weight_ranges(self, name: str, config: OpConfig) -> None:
        parts: list[Any] = list(weighted_parts(self._prepared.get_submodule(name)))
        if parts and config.weight is not None:
            for part, params in zip(parts, self._ranges.of(name, config.weight), strict=True):
                part.weight_quantizer.set_params(params)

    def _calibrate_inputs(self, keys: Iterable[str]) -> None:
        for key in keys:
            quantizer: Any = self._state.quantizers[key]
            quantizer.training = False
            if isinstance(quantizer, ActivationQuantizer) and not quantizer.calibrated:
                self._collected.calibrate(quantizer)

    def first_samples(self, count: int) -> Sequence[Batch]:
        return list(batches(self.batches, count))

    def size(self, config: TuneConfig) -> int:
        return self._cost.size(config)

    def bops(self, config: TuneConfig) -> int:
        return self._cost.bops(config)

    def latency(self, config: TuneConfig, samples: int = 1) -> float:
        return self._latency_of(samples).of(config)

    def latency_spread(self, key: OpKey, config: OpConfig, samples: int = 1) -> float:
        return self._latency_of(samples).spread(key, config)

    def measured_latency(self, model: nn.Module, samples: int = 1) -> float:
        return self._latency_of(samples).measured(model)

    def _latency_of(self, samples: int) -> ModelLatency:
        if samples not in self._latencies:
            batch = self.batches[0]
            if batch.samples < samples:
                raise CalibrationError(
                    f"the latency of {samples} samples at a time is asked for, and the first calibration batch has "
                    f"{batch.samples}; give a larger batch, and a batch_size that does not split it"
                )
            config = TuneConfig({key: _quantized(found) for key, found in self.alternatives.items()})
            self._latencies[samples] = ModelLatency(
                self.model, self._state.graph, self._capability.fusions, batch.first(samples),
                Reference(config, self.quantize),
            )  # fmt: skip
        return self._latencies[samples]

    def output_error(self, key: OpKey, config: OpConfig) -> OutputError:
        given = config
        if config.weight is None:  # attached with any weight, which is then left as it is
            weights = (each.weight for each in self.alternatives[key] if each.weight is not None)
            given = replace(config, weight=next(weights, None))
        expected = self._float_outputs()
        model = self.apply(TuneConfig({**self._as_float.op, key: given}))
        with _float_weight(model, None if given == config else key[0]):
            return output_error(self._outputs(model), expected)

    def error(self, config: TuneConfig, recover: Recover | None = None) -> OutputError:
        expected = self._float_outputs()
        if recover is None:
            return output_error(self._outputs(self.apply(config)), expected)
        model = self.copy(config)
        recover(model)
        return output_error(self._outputs(model), expected)

    def weight_error(self, key: OpKey, config: OpConfig) -> float:
        if config.weight is None or config.weight.is_float:
            return 0.0
        return self._ranges.error(key[0], config.weight)

    def hessian_traces(self, loss_fn: Callable[..., Any], seed: int = 0) -> dict[OpKey, float]:
        model = copied(self.model).eval()
        ops = {key: model.get_submodule(key[0]) for key in self.alternatives if self._is_weighted(key)}
        handlers = {key: handler_of(module) for key, module in ops.items()}
        weights = {key[0]: handler.weights(ops[key]) for key, handler in handlers.items() if handler is not None}
        traces = hessian_traces(model, weights, self.batches[:1], loss_fn, seed)
        return {key: traces[key[0]] for key in ops if key[0] in traces}

    def _is_weighted(self, key: OpKey) -> bool:
        return self._state.graph.ops[key[0]].kind == "module" and bool(self._ranges.weights(key[0]))

    @property
    def _as_float(self) -> TuneConfig:
        return TuneConfig(dict.fromkeys(self.alternatives, OpConfig()))

    def _float_outputs(self) -> list[list[Tensor]]:
        if not self._expected:
            self._expected = self._outputs(self.apply(self._as_float))
        return self._expected

    def _outputs(self, model: nn.Module) -> list[list[Tensor]]:
        with torch.no_grad():
            outputs = [batch.copied().run(model) for batch in self._samples]
        return [_shown(output) for output in outputs]

    def prepare(self, config: TuneConfig) -> nn.Module:
        return prepare(self.model, _Given(self._capability, config), self.batches)

    def copy(self, config: TuneConfig) -> nn.Module:
        return copied(self.apply(config))

    def quantize(self, config: TuneConfig) -> nn.Module:
        return quantize(self.model, _Given(self._capability, config), self.batches)

    def convert(self, prepared: nn.Module) -> nn.Module:
        return convert_in_place(prepared)


def _shown(output: Any) -> list[Tensor]:
    """The float tensors of an output; of one that has none, as where classes come out, all."""
    tensors = [x.detach() for x in tensors_in(output)]
    return [x.float() for x in tensors if x.is_floating_point()] or [x.float() for x in tensors]


def _layers(model: nn.Module) -> list[tuple[str, int, type]]:
    """Return the name, identity and class of each module."""
    return [(name, id(module), type(module)) for name, module in model.named_modules()]


@contextmanager
def _float_weight(model: nn.Module, op: str | None) -> Iterator[None]:
    """Let an op compute with its float weight on its quantized inputs."""
    parts: list[Any] = [] if op is None else list(weighted_parts(model.get_submodule(op)))
    for part in parts:
        part.weight_quantizer.training_rule = _as_it_is
        part.training = True  # in which the rule decides
    try:
        yield
    finally:
        for part in parts:
            part.training = False
            part.weight_quantizer.training_rule = None


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _changed_too_much(what: str) -> EvaluationError:
    return EvaluationError(
        f"the evaluation replaced {what}, which cannot be put back for the trials; let it work on a copy: "
        "copy.deepcopy(model)"
    )


def _float_tensors(model: nn.Module, prepared: nn.Module) -> Iterator[tuple[str, Tensor, Tensor, int]]:
    """Parameters and buffers of a float model, each with the prepared model's and the version that this has now."""
    own = prepared.state_dict(keep_vars=True)
    for name, original in model.state_dict(keep_vars=True).items():
        if isinstance(original, Tensor) and name in own:
            yield name, original, own[name], own[name]._version


def _given(configs: Mapping[OpKey, OpConfig], key: OpKey) -> OpConfig:
    return configs.get(key, OpConfig())


class _Space:
    """A resolver that lets every op collect what its alternatives need, and remembers these."""

    def __init__(self, capability: Capability, request: PostTrainingQuantConfig, first_last: str | None) -> None:
        self.capability = capability
        self.request = request
        self.first_last = first_last
        self.alternatives: dict[OpKey, tuple[OpConfig, ...]] = {}
        self._chosen: Mapping[OpKey, OpConfig] = {}

    @property
    def fusions(self) -> Fusions:
        return self.capability.fusions

    @property
    def strict(self) -> bool:
        return False  # what ops collect with is no trial; each trial is checked when it is applied

    def choose(self, chosen: Mapping[OpKey, OpConfig]) -> None:
        """Give some ops an alternative that needs other statistics."""
        self._chosen = chosen

    def check(self, graph: Graph, model: nn.Module, /) -> None:
        check_promises(self.capability, graph, model)

    def __call__(self, ops: Sequence[OpInfo], /) -> TuneConfig:
        self.alternatives = alternatives(self.capability, ops, self.request, self.first_last)
        return TuneConfig({key: self._chosen.get(key, _observing(each)) for key, each in self.alternatives.items()})


def _quantized(choices: Sequence[OpConfig]) -> OpConfig:
    """The first that is quantized, where there is one."""
    return next((each for each in choices if not each.is_float), choices[0])


def _observing(choices: Sequence[OpConfig]) -> OpConfig:
    """The one that collects most for the others, else a quantized one, where there is one."""
    kinds = {each: kind for each in choices if (kind := kind_of(each)) is not None}
    if not kinds:
        return _quantized(choices)
    return max(kinds, key=lambda each: sum(covers(kinds[each], other) for other in set(kinds.values())))


def _digest_of_model(model: nn.Module) -> str:
    digest = hashlib.sha256(repr(sorted(fingerprint(model).items())).encode())
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(name.encode())
            digest.update(_bytes(tensor))
    return digest.hexdigest()


def _digest_of_data(data: Sequence[Batch]) -> str:
    digest = hashlib.sha256()
    for batch in data:
        for tensor in tensors_in((batch.args, batch.kwargs)):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


class _Given:
    """A resolver of a configuration that is complete."""

    def __init__(self, capability: Capability, config: TuneConfig) -> None:
        self._capability = capability
        self._config = config

    @property
    def fusions(self) -> Fusions:
        return self._capability.fusions

    @property
    def strict(self) -> bool:
        return self._capability.strict

    def check(self, graph: Graph, model: nn.Module, /) -> None:
        check_promises(self._capability, graph, model)

    def __call__(self, ops: Sequence[OpInfo], /) -> TuneConfig:
        return resolve(self._capability, ops, self._config)
