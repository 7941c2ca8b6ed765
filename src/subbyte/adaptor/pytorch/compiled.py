"""Models and parts of models that torch.compile, TorchScript or FSDP2 has made something else of."""

import torch
from torch import nn

from subbyte.errors import ModelError


def check_whole(model: nn.Module) -> None:
    """Refuse them: what they run or hold is no longer what their modules say.

    Raises:
        ModelError: naming the first such module.
    """
    for name, module in model.named_modules():
        place = f"module {name!r}" if name else "the model"
        if "_orig_mod" in module._modules:
            raise ModelError(
                f"{place} is compiled (torch.compile); give the one it was made from (its _orig_mod), and compile the "
                "quantized model"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"{place} is TorchScript (torch.jit), which cannot be quantized; give the Python module that it was "
                "made from"
            )
    check_gathered(model)


def check_gathered(model: nn.Module) -> None:
    """Refuse a model of whose weights this process holds a part.

    Raises:
        ModelError: naming the first such module.
    """
    for name, module in model.named_modules():
        if hasattr(type(module), "unshard"):
            raise ModelError(
                f"{f'module {name!r}' if name else 'the model'} is sharded (fully_shard), so that this process holds a "
                "part of it; gather its state_dict (get_model_state_dict with full_state_dict), load it into a model "
                "that is not sharded, and give that"
            )
