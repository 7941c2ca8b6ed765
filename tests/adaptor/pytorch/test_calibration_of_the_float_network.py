"""What calibration sees is the float network, to the last bit, whichever of its ops are prepared."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte


class Pooled(nn.Module):
    """What the last layer reads is a mean, in which the last bits of a depthwise convolution's bias are seen."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(F.gelu(self.depthwise(x)).mean((2, 3)))
        return y


def test_scales_do_not_depend_on_which_ops_are_prepared() -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        model, x = Pooled().eval(), torch.randn(8, 8, 8, 8)
        float_inputs: list[Tensor] = []
        handle = model.head.register_forward_pre_hook(lambda _, args, seen=float_inputs: seen.append(args[0]))
        with torch.no_grad():
            model(x)
        handle.remove()
        quantizer = next(iter(subbyte.prepare(model, "w8a8", [x]).head.input_quantizers))
        assert quantizer.statistics.minimum.item() == float_inputs[0].min().item()
        assert quantizer.statistics.maximum.item() == float_inputs[0].max().item()
