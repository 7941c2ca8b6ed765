"""Packing: codes a second at every width, and the peak memory of quantizing a 1 GiB weight.

The weight is 16384 x 16384 fp32 noise, quantized to int4. Its peak is taken in a process of its own: the most memory
the process ever held, less what it held before the weight was made, over the weight's size; at most 1.5.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from timing import interleaved

import subbyte
from report import Report, parser
from subbyte.numerics import pack, unpack

LIMIT = 1.5
GRANULARITIES = ("per_channel", "per_group(128)")
SEED = 0


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--peak-of", help=argparse.SUPPRESS)
    arguments.add_argument("--side", type=int, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.peak_of:
        print(json.dumps(_peak(options.peak_of, options.side)))
        return
    report = Report("packing", "Packing: throughput and memory", quick=options.quick)
    _throughput(report, quick=options.quick)
    _memory(report, 8192 if options.quick else 16384)
    report.save()


def _throughput(report: Report, *, quick: bool) -> None:
    count = 1 << (22 if quick else 26)
    rows = []
    for bits in range(1, 9):
        generator = torch.Generator().manual_seed(SEED)
        codes = torch.randint(0, 1 << bits, (count,), dtype=torch.uint8, generator=generator)
        packed = pack(codes, bits)
        assert torch.equal(unpack(packed, bits, count, signed=False), codes)
        functions = {
            "pack": lambda codes=codes, bits=bits: pack(codes, bits),
            "unpack": lambda packed=packed, bits=bits: unpack(packed, bits, count, signed=False),
        }
        times = interleaved(functions, rounds=3 if quick else 9, warmup=1)
        speeds = [f"{count / times[name].median / 1e9:.2f}" for name in functions]
        rows.append([str(bits), *speeds, *(times[name].milliseconds() for name in functions)])
    report.text(
        f"{count:,} random codes (seed {SEED}); a code counts as one byte, as `QuantizedTensor.codes` gives it."
    )
    report.table(
        "Throughput",
        ["bits", "pack, GB/s", "unpack, GB/s", "pack, ms: median (quartiles)", "unpack, ms: median (quartiles)"],
        rows,
    )


def _memory(report: Report, side: int) -> None:
    rows, worst = [], 0.0
    for granularity in GRANULARITIES:
        command = [sys.executable, __file__, "--peak-of", granularity, "--side", str(side)]
        figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        ratio = figures["extra"] / figures["weight"]
        worst = max(worst, ratio)
        rows.append(
            [
                f"int4 {granularity}",
                f"{figures['weight'] / 2**20:.0f}",
                f"{figures['extra'] / 2**20:.0f}",
                f"{figures['quantized'] / 2**20:.0f}",
                f"{ratio:.2f}",
                f"{figures['seconds']:.1f}",
            ]
        )
    columns = ["spec", "weight, MiB", "peak, weight included, MiB", "result, MiB", "peak over weight", "seconds"]
    report.table(f"Quantizing {side} x {side} fp32", columns, rows)
    report.goal(f"peak memory at most {LIMIT} times the weight", f"{worst:.2f} times at the worst", met=worst <= LIMIT)


def _peak(granularity: str, side: int) -> dict[str, float]:
    """Figures of one quantization, in bytes and seconds; for a process of its own."""
    spec = subbyte.TensorSpec("int4", granularity=granularity)
    # Whatever is loaded or allocated once, at first use, is no part of the peak.
    subbyte.quantize_tensor(torch.randn(512, 512), spec)
    before = _memory_of_process("VmRSS")
    weight = torch.randn(side, side, generator=torch.Generator().manual_seed(SEED))
    start = time.perf_counter()
    quantized = subbyte.quantize_tensor(weight, spec)
    seconds = time.perf_counter() - start
    extra = _memory_of_process("VmHWM") - before
    return {"weight": weight.nbytes, "extra": extra, "quantized": quantized.nbytes, "seconds": seconds}


def _memory_of_process(field: str) -> int:
    """Bytes of this process, now (VmRSS) or at its highest (VmHWM).

    Not ru_maxrss: on Linux that one starts at what the parent process held.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        sys.exit("peak memory is read from /proc/self/status, which only Linux has")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main()
