"""Keeping the float function of a model while its parameters are changed."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.adaptor.pytorch.prepared.data_flow import shown
from subbyte.errors import ModelError

_TOLERANCE = 1e-3  # of the largest value: far above what fp32 rounds, far below what a mistake makes
_SAMPLES = 8


@contextmanager
def same_function(model: PreparedModel, method: str) -> Iterator[None]:
    """Check that the model computes afterwards in float what it did before; its scales are to be found anew.

    Raises:
        ModelError: it does not.
    """
    before = _outputs(model)
    yield
    for old, new in zip(before, _outputs(model), strict=True):
        difference = float((old.float() - new.float()).abs().max())
        if not difference <= _TOLERANCE * max(float(old.abs().max()), 1e-6):
            raise ModelError(
                f"recovery method {method!r} changed what the model computes in float (by {difference:.2g}): its code "
                "uses values in a way that cannot be seen, as in TorchScript or NumPy; leave this method out"
            )


def _outputs(model: PreparedModel) -> list[Tensor]:
    with model.phase("bypass"):
        outputs = shown(model.run(model.batches[0].first(_SAMPLES)))
    return [x.detach().clone() for x in outputs if x.numel()]
