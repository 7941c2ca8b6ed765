"""What a packed model takes in a process: resident memory before and after, in a process of its own."""

import ctypes
import gc

import torch
from contenders import in_fresh_process
from resident import resident as resident_now
from torch import nn

import subbyte
from report import Report

CONFIGURATIONS = ("w8a8:dynamic:g128", "w4a8:dynamic:g128", "w2a8:dynamic:g128")


def report_memory(report: Report, *, quick: bool) -> None:
    """A row for each configuration."""
    rows = []
    for configuration in CONFIGURATIONS[:1] if quick else CONFIGURATIONS:
        figures = in_fresh_process(_resident, configuration, quick)
        ratio = figures["trimmed"] / figures["float"]
        mebibytes = (f"{figures[name] / 2**20:.0f}" for name in ("weights", "float", "held", "quantized", "trimmed"))
        rows.append([configuration, *mebibytes, f"{ratio:.3f}"])
    report.table(
        "Resident memory of a model of equal Linear layers, MiB",
        ["configuration", "fp32 weights", "float model", "its tensors on kernels", "model on kernels",
         "after malloc_trim", "of the float model"],
        rows,
    )  # fmt: skip
    report.text(
        "Resident is what the process holds of it beyond what it held before: of the float model, and of the model "
        "on kernels after the float one is gone; tensors are what the packed model's parameters and buffers add up to. "
        "The C library keeps freed memory for later allocations until it needs it or `malloc_trim` has it give it back."
    )


def _resident(configuration: str, quick: bool) -> dict[str, int]:
    """Return figures in bytes; for a fresh process."""
    side, layers = (512, 4) if quick else (4096, 8)
    x = torch.randn(1, side)
    subbyte.use_kernels(
        subbyte.quantize(_network(64, 1), configuration, torch.randn(1, 64))
    )  # loads what is loaded once
    before = resident_now()
    model = _network(side, layers)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    as_float = resident_now() - before
    quantized = subbyte.use_kernels(subbyte.quantize(model, configuration, x))
    del model
    gc.collect()
    after = resident_now() - before
    quantized(x)
    held = sum(x.nbytes for x in (*quantized.parameters(), *quantized.buffers()))
    _trim()
    return {"weights": weights, "float": as_float, "held": held, "quantized": after, "trimmed": resident_now() - before}


def _trim() -> None:
    """Have the C library give back what it keeps for later allocations, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _network(side: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(layers)))
