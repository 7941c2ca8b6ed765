"""Calibration: batches through the float model, statistics into scales."""

from collections.abc import Iterable

from torch import nn

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.recording import Recording
from subbyte.adaptor.pytorch.state import QuantizationState
from subbyte.adaptor.pytorch.unchanged import unchanged
from subbyte.errors import CalibrationError, UnseenOpError


def calibrate(model: nn.Module, recording: Recording, stream: Iterable[Batch]) -> None:
    """Observe every batch, fix all scales, and measure on the last batch what each quantizer loses.

    Raises:
        CalibrationError: a batch does not fit, or gives values that are not finite.
    """
    state, last = recording.state, None
    for last in stream:
        state.run.phase = "observe"
        _observe(model, recording, last)
    if last is None:
        raise CalibrationError("the calibration data is empty: give at least one batch")
    for quantizer in state.static_quantizers():
        quantizer.calibrate()
    with unchanged(model):
        state.run.phase = "measure"
        last.copied().run(model)
    _collect_figures(state)


def _observe(model: nn.Module, recording: Recording, batch: Batch) -> None:
    while True:
        try:
            with unchanged(model):
                batch.copied().run(model)
        except UnseenOpError:
            # This batch takes a path that none before did: record it, then run the batch again.
            if not recording.learn(model, batch):
                raise
        else:
            return


def _collect_figures(state: QuantizationState) -> None:
    for op, keys in state.input_keys.items():
        figures = [getattr(state.quantizers[key], "sqnr", None) for key in keys]
        known = [figure for figure in figures if figure is not None]
        if known:
            state.activation_sqnr[op] = min(known)
