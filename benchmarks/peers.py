"""The layers of other libraries, as far as they are installed."""

from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from layers import Layer
from torch import Tensor


class Peers:
    """What is installed of them.

    Args:
        remarks: which libraries there are, and which are not installed.
    """

    def __init__(self) -> None:
        self._modules: list[ModuleType] = []
        self.remarks: list[str] = []
        for library in ("torch", "onnxruntime", "openvino"):
            try:
                self._modules.append(import_module(f"peers_{library}"))
                self.remarks.append(f"{library} {version(library)}")
            except ImportError as error:
                self.remarks.append(f"{library} NOT INSTALLED ({error}; `pip install subbyte[bench]`)")

    def linear(self, x: Tensor, weight: Tensor) -> dict[str, Layer]:
        """x [rows, inputs], weight [outputs, inputs]."""
        return {name: layer for each in self._modules for name, layer in each.linear_layers(x, weight).items()}

    def convolution(self, x: Tensor, weight: Tensor) -> dict[str, Layer]:
        """x [batch, channels, height, width], weight [channels, channels, 3, 3]; padding 1."""
        return {name: layer for each in self._modules for name, layer in each.convolution_layers(x, weight).items()}
