"""Going on with other bits: the weights that were trained so far, at another configuration."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from subbyte.adaptor.pytorch.adaptor import PyTorchAdaptor
from subbyte.adaptor.pytorch.attach import weighted_parts
from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.compiled import check_gathered
from subbyte.adaptor.pytorch.computed_weights import Sample, computed_weights
from subbyte.adaptor.pytorch.coverage import op_infos
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.splitting import split_batches
from subbyte.adaptor.pytorch.state import state_of
from subbyte.config import as_request, for_training, resolve, sampling_size
from subbyte.config.request import Request
from subbyte.spec import TuneConfig
from subbyte.training.asked import Asked
from subbyte.training.prepare import train_by

Slot = tuple[str, str, int]  # the op, weight or input, which of them


def requantize(model: nn.Module, config: Any, data: Any) -> list[nn.Parameter]:
    """Give a model in training another configuration, in place: progressive bits, or activations after weights.

    Weights, biases and BatchNorms go on as they are, and so do learned scales of what is quantized as before. Other
    scales are found anew, as `prepare_qat` finds them: the best clipping of two bits is much tighter than that of
    eight, so that an old scale in new steps would be a worse start than the least squared error. Activations are
    observed as the weights give them that were computed with so far, quantized as they were: those are what the
    BatchNorms fit. All are the same `nn.Parameter` objects wherever there were scales before,
    so that the optimizer goes on.

    Args:
        model: made by `prepare_qat`, whose capability, first_last and training rules stay.
        config: as for `prepare_qat`.
        data: calibration data, as for `prepare_qat`.

    Returns:
        the learned parameters that are new, as of activations that were float: the optimizer is to be given them.

    Raises:
        SubbyteError: one of its kinds, if the model, the configuration or the data is not right; the model is then as
            it was.
    """
    limit = sampling_size(_wanted(model, config)[1])
    kept = list(split_batches(model, data, limit=limit))
    _requantize(copy.deepcopy(model), config, kept)  # what fails late fails here
    try:
        return _requantize(model, config, kept)
    except BaseException:  # Ctrl-C, as what can fail has failed before
        state_of(model).run.phase = "unfinished"
        raise


def _requantize(model: nn.Module, config: Any, kept: Sequence[Batch]) -> list[nn.Parameter]:
    asked, request, first_last = _wanted(model, config)
    sample = Sample(kept, computed_weights(model))
    before = dict(_quantizers(model))
    PyTorchAdaptor(asked.capability).prepare_again(model, request, sample, first_last)
    train_by(model, asked.rules, sample)
    return list(_new_parameters(model, before))


def check_requantize(model: nn.Module, config: Any) -> TuneConfig:
    """Refuse a configuration that `requantize` would, before time is spent; returns what each op would get.

    Raises:
        SubbyteError: as for `requantize`.
    """
    asked, request, first_last = _wanted(model, config)
    state = state_of(model)
    ops = op_infos(state.graph, model, state.float_parameters)
    return resolve(asked.capability, ops, request, first_last)


def _wanted(model: nn.Module, config: Any) -> tuple[Asked, Request, str | None]:
    check_gathered(model)
    state_of(model).run.check_finished()
    asked, request = Asked.of(model), for_training(as_request(config))
    return asked, request, None if isinstance(request, TuneConfig) else asked.first_last


def _learned(quantizer: Quantizer) -> dict[str, nn.Parameter]:
    return {name: getattr(quantizer, name) for name in quantizer.learned}


def _quantizers(model: nn.Module) -> Iterator[tuple[Slot, Quantizer]]:
    """Those of weights and of inputs; one that several ops share comes under each."""
    state = state_of(model)
    for op in (op for op in state.graph if op.kind == "module"):
        for index, part in enumerate(weighted_parts(model.get_submodule(op.name))):
            if isinstance(part, PreparedWeighted):
                yield (op.name, "weight", index), part.weight_quantizer
    for name, keys in state.input_keys.items():
        for index, key in enumerate(keys):
            yield (name, "input", index), state.quantizers[key]  # type: ignore[misc]


def _new_parameters(model: nn.Module, before: dict[Slot, Quantizer]) -> Iterator[nn.Parameter]:
    """Let the parameters that were there before hold the new values; yields those that have none to stand for."""
    taken: set[nn.Parameter] = set()
    done: set[Quantizer] = set()
    for slot, quantizer in _quantizers(model):
        if quantizer in done:
            continue
        done.add(quantizer)
        earlier = before.get(slot)
        known = {} if earlier is None else _learned(earlier)
        for name, parameter in _learned(quantizer).items():
            old = known.get(name)
            if earlier is None or old is None or old in taken or old.shape != parameter.shape:
                yield parameter
                continue
            taken.add(old)
            if earlier.spec == quantizer.spec:  # what was learned for these very steps stays
                _keep_smallest(earlier, quantizer)
            else:
                with torch.no_grad():
                    old.copy_(parameter)
            old.grad = None
            setattr(quantizer, name, old)


def _keep_smallest(earlier: Quantizer, quantizer: Quantizer) -> None:
    if "smallest_scale" in earlier._buffers:
        quantizer.get_buffer("smallest_scale").copy_(earlier.get_buffer("smallest_scale"))
