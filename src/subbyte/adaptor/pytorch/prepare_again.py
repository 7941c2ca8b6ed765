"""Giving a prepared model another configuration: the same modules and float weights, other quantizers."""

from itertools import chain

import torch
from torch import nn

from subbyte.adaptor.pytorch.attach import attach, detach
from subbyte.adaptor.pytorch.calibrate import calibrate
from subbyte.adaptor.pytorch.computed_weights import Sample, standing_in
from subbyte.adaptor.pytorch.coverage import op_infos
from subbyte.adaptor.pytorch.overflow import check_accumulators
from subbyte.adaptor.pytorch.recording import Recording, Resolver
from subbyte.adaptor.pytorch.state import QuantizationState, state_of
from subbyte.errors import ModelError


def prepare_again(model: nn.Module, resolve: Resolver, sample: Sample) -> None:
    """Quantize a prepared model otherwise, in place.

    Modules, parameters and buffers of the float model stay the objects that they are; all quantizers are new, and
    calibrated on the sample.

    Args:
        model: prepared; changed.
        resolve: from its ops to what each gets.
        sample: calibration data, and the weights that it meets: what the model computed with so far, which its
            BatchNorms fit.

    Raises:
        ModelError: the model is converted, or was prepared without data.
        CalibrationError: the data is empty, unfit or not finite.
        ConfigError: the configuration does not fit the model, which then stays as it was.
    """
    state = state_of(model)
    if state.converted:
        raise ModelError("a converted model has no float weights to be quantized otherwise; give the prepared one")
    if not any(op.calls for op in state.graph):
        raise ModelError(
            "this model was prepared without data, so the ways through it are not known; prepare it with data"
        )
    config = resolve(op_infos(state.graph, model, state.float_parameters))
    with torch.inference_mode(False):
        for name in state.graph.ops:
            detach(model, state, name)
        state.config = config
        state.activation_sqnr.clear()
        attach(model, state, list(state.graph.ops))
        state.to(next(chain(model.parameters(), model.buffers()), torch.empty(0)).device)
        with standing_in(sample.weights):
            calibrate(model, Recording(state, resolve, _function_names(state)), sample.batches)
        if resolve.strict:
            check_accumulators(model)
        state.train(model.training)
        state.run.phase = "quantize"


def _function_names(state: QuantizationState) -> dict[tuple[str, str, str], str]:
    """The names that functional ops were given, by where they are called."""
    functions = (op for op in state.graph if op.kind == "function")
    return {(op.scope, op.type, call.site): op.name for op in functions for call in op.calls}
