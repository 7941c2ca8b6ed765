"""Kernels: layers on packed codes beside other libraries', as shares of what this processor can do, against the goals.

HOT calls the same weight again and again; COLD goes round copies of at least 160 MB, as a model of many layers does.
All layers of a table take turns in one run.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import ceilings
import torch
from ceilings import Ceilings
from kernel_goals import report_goals
from kernel_memory import report_memory, resident
from kernel_packing import report_packing
from layers import Layer
from measuring import Case, Results
from own_layers import OwnLayer, model_on_kernels, own_layer
from peers import Peers
from torch import Tensor, nn

import subbyte
from report import Report, parser
from subbyte.kernels import used_isa

SEED = 0
SECONDS = 14.0  # of a case
COLD_BYTES = 160 << 20  # several times what caches hold: a call finds nothing of its weight there
SECTIONS = ("ceilings", "linear", "convolution", "avx2", "packing", "memory")

# Shapes (rows, inputs, outputs) by name, gathered by weight; (batch, channels, side) of convolutions.
LINEAR = (
    {"M=1": (1, 4096, 4096), "M=16": (16, 4096, 4096), "M=128": (128, 4096, 4096)},
    {"M=1 wide": (1, 4096, 11008)},
    {"M=512": (512, 1024, 1024)},
)
CONVOLUTION = {
    "64 channels": (1, 64, 56),
    "128 channels": (1, 128, 28),
    "256 channels": (1, 256, 14),
    "16 channels": (32, 16, 32),
}

# Configurations of ours by the names that goals know them by.
USERS_TYPE = subbyte.DataType("apot4", values=[s * v / 16 for s in (-1, 1) for v in (1, 2, 3, 4, 6, 8, 12, 16)])
CODES = {f"W{bits}A8 g128": f"w{bits}a8:dynamic:g128" for bits in (1, 2, 3, 4, 8)}
BINARY = {"W1A1": "w1a1"}
FLOATS = {"W4 x fp32 g128": "w4:g128", "W4 x bf16 g128": "w4:g128"}
CODEBOOKS = {
    f"{name} x {x} g128": f"w{dtype}{short}:g128"
    for name, dtype in (("nf4", "nf4"), ("fp4", "fp4_e2m1"), ("a user's 4-bit type", USERS_TYPE.name))
    for x, short in (("A8", "a8:dynamic"), ("fp32", ""))
}
CONVOLUTIONS = {"W1A1": "w1a1", "W2A8": "w2a8", "W4A8": "w4a8", "W8A8": "w8a8"}
AVX2_CODES = CODES | BINARY

Models = dict[str, nn.Module | None]


class Run:
    """Measures sections one after another.

    Args:
        quick: small shapes and little time.
    """

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.results = Results(0.1, 1 << 20) if quick else Results(SECONDS, COLD_BYTES)
        self.missing: dict[str, str] = {}  # configurations without a kernel, by name

    def linear(self, peers: Peers | None, configurations: dict[str, str], isa: str = "") -> None:
        """All shapes; with an instruction set forced, those of the first weight, HOT."""
        for shapes in LINEAR[:1] if isa or self.quick else LINEAR:
            shapes = {name: self._small(shape) if self.quick else shape for name, shape in shapes.items()}
            _, inputs, outputs = next(iter(shapes.values()))
            weight = torch.randn(outputs, inputs) / inputs**0.5
            asked = {name: given for name, given in configurations.items() if name not in CODEBOOKS or "M=1" in shapes}
            models = self._models(_linear(weight), asked, torch.randn(4, inputs), "Linear")
            for name, (rows, *_) in list(shapes.items())[:: 2 if self.quick else 1]:
                x = torch.randn(rows, inputs)
                for weights in ("HOT", "COLD") if rows == 1 and not isa else ("HOT",):
                    shape = f"{rows}, {inputs}, {outputs}"
                    case = Case("Linear", name, shape, 2.0 * rows * inputs * outputs, weights, isa, rows == 1)
                    self._measure(case, x, {} if peers is None else peers.linear(x, weight), models)

    def convolution(self, peers: Peers) -> None:
        """All shapes; 3x3, padding 1."""
        for name, (batch, channels, side) in list(CONVOLUTION.items())[-1 if self.quick else 0 :]:
            batch, side = (2, 8) if self.quick else (batch, side)
            x = torch.randn(batch, channels, side, side).contiguous(memory_format=torch.channels_last)
            weight = torch.randn(channels, channels, 3, 3) / (9 * channels) ** 0.5
            models = self._models(_convolution(weight), CONVOLUTIONS, x, "Conv2d")
            shape = f"{batch} of {channels} x {side} x {side}"
            case = Case("Conv2d", name, shape, 2.0 * batch * side * side * channels * channels * 9)
            self._measure(case, x, peers.convolution(x, weight), models)

    def avx2(self) -> None:
        """What a process finds whose kernels are the AVX2 ones."""
        command = [sys.executable, __file__, "--as-json", *(["--quick"] if self.quick else [])]
        environment = os.environ | {"SUBBYTE_ISA": "avx2"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        self.results.add_json(json.loads(done.stdout.splitlines()[-1]))

    def _measure(self, case: Case, x: Tensor, peers: dict[str, Layer], models: Models) -> None:
        fitting = {name: model for name, model in models.items() if model is not None and _is_asked(case, name)}
        own: dict[str, OwnLayer] = {
            name: own_layer(model, x.bfloat16() if "bf16" in name else x) for name, model in fitting.items()
        }
        self.results.measure(case, peers, own)

    def _models(self, make: Callable[[], nn.Module], configurations: dict[str, str], x: Tensor, kind: str) -> Models:
        models: Models = {}
        for name, configuration in configurations.items():
            dtype = torch.bfloat16 if "bf16" in name else torch.float32
            models[name] = model_on_kernels(make().to(dtype), configuration, x.to(dtype))
            if models[name] is None:
                self.missing[f"{kind} {name}"] = configuration
        return models

    @staticmethod
    def _small(shape: tuple[int, int, int]) -> tuple[int, int, int]:
        return shape[0], 512, 512


def main() -> None:
    options = _options()
    torch.manual_seed(SEED)
    subbyte.register_dtype(USERS_TYPE)
    run = Run(quick=options.quick)
    if options.resident:
        print(json.dumps(resident(options.resident, quick=options.quick)))
    elif options.as_json:
        run.linear(None, AVX2_CODES, used_isa())
        print(json.dumps(run.results.to_json()))
    else:
        _report(run, options)


def _options() -> argparse.Namespace:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=SECTIONS, help="a part, printed and not written")
    arguments.add_argument("--as-json", action="store_true", help=argparse.SUPPRESS)
    arguments.add_argument("--resident", help=argparse.SUPPRESS)
    return arguments.parse_args()


def _report(run: Run, options: argparse.Namespace) -> None:
    asked = options.only or SECTIONS
    report = Report("kernels", "Kernels", quick=options.quick or options.only is not None)
    peers = Peers()
    report.text(
        f"Instruction set: {used_isa()}; {torch.get_num_threads()} threads; seed {SEED}. GOP/s counts a multiplication "
        "and an addition as two. `model` is a model of this one layer, called as a user calls it, quantization of its "
        "input included; `op` are the operators of `torch.ops.subbyte` that it calls, called again without it. Goals "
        "are judged by the op where it does all the work, else by the model."
    )
    report.text(f"Peers: {'; '.join(peers.remarks)}.")
    found = ceilings.measured() if set(asked) & {"ceilings", "linear", "convolution", "avx2"} else Ceilings((), ())
    parts: dict[str, Callable[[], None]] = {
        "ceilings": partial(_report_ceilings, report, found),
        "linear": partial(run.linear, peers, CODES | BINARY | FLOATS | CODEBOOKS),
        "convolution": partial(run.convolution, peers),
        "avx2": run.avx2,
    }
    for name, measure in parts.items():
        if name in asked:
            measure()
    _report_layers(report, run.results, found)
    if run.missing:
        report.text(f"No kernel yet: {', '.join(f'{name} (`{given}`)' for name, given in run.missing.items())}.")
    report_goals(report, run.results, found)
    if "packing" in asked:
        report_packing(report, quick=options.quick)
    if "memory" in asked:
        report_memory(report, quick=options.quick)
    report.save()


def _report_ceilings(report: Report, found: Ceilings) -> None:
    rows = [[f"{row.name}, {row.unit}", str(row.threads), f"{row.best:.0f}", f"{row.median:.0f}"] for row in found.rows]
    report.table("Ceilings", ["what", "threads", "best", "median"], rows)
    for remark in found.remarks:
        report.text(remark)


def _report_layers(report: Report, results: Results, found: Ceilings) -> None:
    for case in results.cases():
        measured = results.of(case.key)
        base = next((each for name, each in measured.items() if name.startswith("torch fp32")), None)
        rows = []
        for name, each in measured.items():
            share = each.share(found)
            speed = case.operations / each.times.median / 1e9
            ratio = f"{base.times.median / each.times.median:.1f}" if base else "-"
            of_ceiling = "-" if share is None else f"{share:.0%} of {each.ceiling}"
            rows.append([name, each.times.milliseconds(), f"{speed:.0f}", ratio, of_ceiling])
        report.table(
            str(case), ["layer", "ms: median (quartiles)", "GOP/s", "times torch fp32", "of the ceiling"], rows
        )


def _is_asked(case: Case, name: str) -> bool:
    """Codebooks are measured where goals speak of them."""
    return name not in CODEBOOKS or case.name == "M=1"


def _linear(weight: Tensor) -> Callable[[], nn.Module]:
    return partial(_with_weight, nn.Linear, (weight.shape[1], weight.shape[0]), weight)


def _convolution(weight: Tensor) -> Callable[[], nn.Module]:
    made = partial(nn.Conv2d, kernel_size=3, padding=1)
    return partial(_with_weight, made, (weight.shape[1], weight.shape[0]), weight)


def _with_weight(make: Callable[..., nn.Module], size: tuple[int, int], weight: Tensor) -> nn.Module:
    module = make(*size, bias=False)
    module.weight = nn.Parameter(weight.clone(), requires_grad=False)
    return module


if __name__ == "__main__":
    with torch.no_grad():
        main()
