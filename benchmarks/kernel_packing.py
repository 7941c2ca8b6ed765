"""How fast weights are packed: the operators, and laying a layer out for its kernel."""

import copy
import time
from functools import partial

import torch
from timing import in_turns
from torch import nn

import subbyte
from report import Report
from subbyte.kernels.packing import pack_codes, unpack_codes

WIDTHS = (1, 2, 3, 4, 8)


def report_packing(report: Report, *, quick: bool) -> None:
    """Operators by width, then laying out."""
    count = 1 << (20 if quick else 25)
    codes = torch.randint(0, 2, (count,), dtype=torch.uint8)
    x = torch.randn(count)
    functions = {"sign_pack": partial(torch.ops.subbyte.sign_pack, x)}
    for bits in WIDTHS:
        functions[f"pack_codes, {bits} bits"] = partial(pack_codes, codes, bits)
        functions[f"unpack_codes, {bits} bits"] = partial(unpack_codes, pack_codes(codes, bits), bits, count, False)
    rows = [
        [name, times.milliseconds(), f"{count / times.median / 1e9:.2f}"]
        for name, times in in_turns(functions, 0.1 if quick else 10.0).items()
    ]
    report.table(f"Packing {count:,} codes", ["operator", "ms: median (quartiles)", "1e9 codes/s"], rows)
    side = 256 if quick else 4096
    report.table(
        f"Laying out a Linear of {side} x {side}",
        ["configuration", "quantize, ms", "use_kernels, ms"],
        [_laying_out(f"w{bits}a8:dynamic:g128", side) for bits in WIDTHS],
    )


def _laying_out(configuration: str, side: int) -> list[str]:
    model = nn.Sequential(nn.Linear(side, side, bias=False))
    start = time.perf_counter()
    quantized = subbyte.quantize(model, configuration, torch.randn(1, side))
    middle = time.perf_counter()
    taken = min(_seconds_of_use_kernels(copy.deepcopy(quantized)) for _ in range(3))
    return [configuration, f"{(middle - start) * 1e3:.0f}", f"{taken * 1e3:.1f}"]


def _seconds_of_use_kernels(model: nn.Module) -> float:
    start = time.perf_counter()
    subbyte.use_kernels(model)
    return time.perf_counter() - start
