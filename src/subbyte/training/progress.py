"""Telling gradients that are scheduled how far training has come."""

from torch import nn

from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.errors import ConfigError, ModelError


def set_progress(model: nn.Module, progress: float) -> None:
    """Write the progress of training, as in `epoch / epochs`, for gradients that change with it; a write of buffers.

    Args:
        model: made by `prepare_qat`, with a scheduled gradient as `ir_net`.
        progress: from 0 to 1.

    Raises:
        ConfigError: it is outside of that.
        ModelError: no gradient of the model is scheduled.
    """
    if not 0 <= progress <= 1:
        raise ConfigError(f"set_progress: progress is from 0 to 1, not {progress!r}; give epoch / epochs")
    state_of(model)
    scheduled = _scheduled(model)
    if not scheduled:
        raise ModelError("set_progress: no gradient of this model changes with progress; ask for one, as ir_net")
    for quantizer in scheduled:
        quantizer.get_buffer("progress").fill_(progress)


def follows_progress(model: nn.Module) -> bool:
    """Whether a gradient of the model is scheduled."""
    return bool(_scheduled(model))


def _scheduled(model: nn.Module) -> list[Quantizer]:
    return [each for each in model.modules() if isinstance(each, Quantizer) and "progress" in each._buffers]
