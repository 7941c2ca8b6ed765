"""The libraries whose layers are measured: what is installed, their layers in a case, and one turn of all of these."""

from functools import lru_cache
from importlib import import_module
from importlib.metadata import version

import torch
from cases import Case
from layers import Call, Layer
from timing import in_turns

OWN = "subbyte"
PEERS = ("torch", "onnxruntime", "openvino")


def installed_peers() -> tuple[list[str], list[str]]:
    """Return the peers that are installed, and a remark on each peer."""
    found, remarks = [], []
    for library in PEERS:
        try:
            import_module(f"peers_{library}")
        except ImportError as error:
            remarks.append(f"{library} NOT INSTALLED ({error}; `pip install '.[bench]'`)")
        else:
            found.append(library)
            remarks.append(f"{library} {version(library)}")
    return found, remarks


def layers_of(library: str, case: Case) -> dict[str, Layer]:
    """Return the layers of a library in a case, by name."""
    if library == OWN:
        return import_module("own_layers").own_layers(case)
    module = import_module(f"peers_{library}")
    make = module.linear_layers if case.kind == "Linear" else module.convolution_layers
    return make(*case.tensors())


@torch.no_grad()
def facts_of(library: str, case: Case) -> dict[str, tuple[int, bool]]:
    """Return by layer the bytes that a call reads of its weight, and whether it does the work of the whole layer."""
    return {name: (layer.nbytes, layer.alone) for name, layer in _layers(library, case).items()}


@torch.no_grad()
def turn_of(library: str, case: Case, cold_bytes: int) -> dict[str, list[float]]:
    """Let each layer of a library have one turn; return by layer the seconds of each call."""
    layers = _layers(library, case)
    times = in_turns(_calls(library, case, cold_bytes), seconds=0)
    return {name: list(layers[name].per_layer(each).seconds) for name, each in times.items()}


@lru_cache(maxsize=1)  # the weights of the case before are freed
def _layers(library: str, case: Case) -> dict[str, Layer]:
    return layers_of(library, case)


@lru_cache(maxsize=1)
def _calls(library: str, case: Case, cold_bytes: int) -> dict[str, Call]:
    layers = _layers(library, case).items()
    return {name: layer.hot() if case.weights == "HOT" else layer.cold(cold_bytes) for name, layer in layers}
