"""The same methods in other libraries, as far as they are installed: one file for each."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import nn

from peers_recovery.setting import Setting

__all__ = ["PEERS", "Setting", "installed", "quantized"]

# name: (module of this folder, what pip installs)
PEERS = {
    "Brevitas": ("of_brevitas", "brevitas"),
    "Neural Compressor": ("of_neural_compressor", "neural-compressor"),
    "torchao": ("of_torchao", "torchao"),
    "NNCF": ("of_nncf", "nncf"),
}

Method = Callable[[nn.Module, Sequence[Any], Setting], nn.Module]


def installed(name: str) -> str:
    """Name and version, or that it is not there."""
    try:
        return f"{name} {version(PEERS[name][1])}"
    except PackageNotFoundError:
        return f"{name} NOT INSTALLED (`pip install '.[bench]'`)"


def quantized(name: str, method: str, model: nn.Module, batches: Sequence[Any], setting: Setting) -> nn.Module:
    """A quantized copy of a float model, by a library's method.

    Raises:
        Exception: whatever the library raises where it does not do that.
    """
    methods: Mapping[str, Method] = import_module(f"peers_recovery.{PEERS[name][0]}").METHODS
    return methods[method](model, batches, setting)
