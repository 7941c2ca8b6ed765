"""A residual block whose inputs may be binary; apart from the others, which peers load without Subbyte."""

from torch import Tensor

from networks.resnet_cifar import BasicBlock
from subbyte.training.binary import LearnableShift, RPReLU


class BlockForSigns(BasicBlock):
    """The same convolutions for binary inputs: a skip past each of them (Bi-Real Net, Liu et al., 2018), before each a
    learned shift, and after each RPReLU, since what ReLU gives has no sign to tell (ReActNet, Liu et al., 2020).

    Args:
        inputs, outputs, stride: as of BasicBlock.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, stride)
        self.shift1, self.shift2 = LearnableShift(inputs), LearnableShift(outputs)
        self.act1, self.act2 = RPReLU(outputs), RPReLU(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.bn1(self.conv1(self.shift1(x))) + self.shortcut(x))
        joined: Tensor = self.act2(self.bn2(self.conv2(self.shift2(y))) + y)
        return joined
