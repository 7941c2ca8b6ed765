"""Calibration: batches through the float model, statistics into scales."""

from collections.abc import Iterable

from torch import nn

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.recording import Recording
from subbyte.adaptor.pytorch.state import QuantizationState
from subbyte.adaptor.pytorch.unchanged import unchanged
from subbyte.errors import CalibrationError, UnseenOpError
from subbyte.numerics import Loss

_MOST_PATHS = 8  # batches that are kept to be run again


def calibrate(model: nn.Module, recording: Recording, stream: Iterable[Batch]) -> None:
    """Observe every batch, fix all scales, and measure what each quantizer loses.

    Measured is on the largest batch, and on the first few that took a path of their own.

    Raises:
        CalibrationError: a batch does not fit, or gives values that are not finite.
    """
    state, largest = recording.state, None
    on_new_paths: list[Batch] = []
    for batch in stream:
        state.run.phase = "observe"
        if _observe(model, recording, batch) and len(on_new_paths) < _MOST_PATHS:
            on_new_paths.append(batch)
        largest = batch if largest is None or batch.samples > largest.samples else largest
    if largest is None:
        raise CalibrationError("the calibration data is empty: give at least one batch")
    for quantizer in state.static_quantizers():
        quantizer.calibrate()
    state.run.phase = "measure"
    for batch in [largest, *(batch for batch in on_new_paths if batch is not largest)]:
        with unchanged(model):
            batch.copied().run(model)
    _collect_figures(state)


def _observe(model: nn.Module, recording: Recording, batch: Batch) -> bool:
    """Run a batch; returns whether it took a path that none before did."""
    learned = False
    while True:
        try:
            with unchanged(model):
                batch.copied().run(model)
        except UnseenOpError:
            if not recording.learn(model, batch):
                raise
            learned = True  # then run the batch again
        else:
            return learned


def _collect_figures(state: QuantizationState) -> None:
    for op, keys in state.input_keys.items():
        losses = [state.quantizers[key].loss for key in keys]
        figures = [loss.sqnr for loss in losses if isinstance(loss, Loss) and loss.count]
        if figures:
            state.activation_sqnr[op] = min(figures)
