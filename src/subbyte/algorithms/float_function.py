"""Keeping the float function of a model while its parameters are changed."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.adaptor.pytorch.prepared.data_flow import DataFlow, data_flow, shown
from subbyte.errors import ModelError

_TOLERANCE = 1e-3  # of the largest value: far above what fp32 rounds, far below what any mistake makes


def flow_of(model: PreparedModel) -> DataFlow:
    """The data flow of a prepared model on its calibration data."""
    with model.phase("bypass"):
        return data_flow(model.model, model.batches)


@contextmanager
def same_function(model: PreparedModel, method: str) -> Iterator[None]:
    """Check that the model computes afterwards in float what it did before, then find its scales anew.

    Raises:
        ModelError: it does not.
    """
    before = _outputs(model)
    yield
    for old, new in zip(before, _outputs(model), strict=True):
        difference = float((old.float() - new.float()).abs().max()) if old.numel() else 0.0
        if not difference <= _TOLERANCE * max(float(old.abs().max()), 1e-6):
            raise ModelError(
                f"recovery method {method!r} changed what the model computes in float (by {difference:.2g}): its code "
                "uses values in a way that cannot be seen, as in TorchScript or NumPy; leave this method out"
            )
    model.recalibrate()


def _outputs(model: PreparedModel) -> list[Tensor]:
    with model.phase("bypass"):
        return [x.detach().clone() for x in shown(model.run(model.batches[0])) if x.numel()]
