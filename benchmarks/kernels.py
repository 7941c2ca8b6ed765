"""Kernels: linear layers on packed codes against float and int8 peers, weights in cache (HOT) and out of it (COLD).

Times are of the torch op, static quantization of activations included. HOT calls the same weight several times in a
row before the next kernel has its turn; COLD goes round copies of at least 160 MB, as a model of many layers does.
"""

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import torch
from timing import Times, interleaved
from torch import Tensor

from report import Report, parser
from subbyte.kernels import used_isa
from subbyte.kernels.linear import LinearWeight, linear_codes

SHAPES = ((1, 4096, 4096), (1, 4096, 11008), (16, 4096, 4096), (128, 4096, 4096), (512, 1024, 1024))
WIDTHS = ((8, 0), (4, 128), (3, 128), (2, 128))  # bits, group size; 0: per channel
COLD_BYTES = 160 << 20
IN_A_ROW = 8  # calls of a turn
SEED = 0


def main() -> None:
    options = parser(__doc__).parse_args()
    report = Report("kernels", "Kernels", quick=options.quick)
    report.text(
        f"Instruction set: {used_isa()}; {torch.get_num_threads()} threads; seed {SEED}. GOP/s counts a multiplication "
        "and an addition as two. Beside other libraries' kernels, and as a share of what this processor could do, they "
        "are not measured yet."
    )
    torch.manual_seed(SEED)
    for temperature in ("HOT", "COLD"):
        shapes = SHAPES if temperature == "HOT" else SHAPES[:2]
        rows = [row for shape in shapes for row in _rows(shape, temperature, quick=options.quick)]
        report.table(
            f"Linear, weights {temperature}",
            ["M, K, N; kernel", "ms: median (quartiles)", "GOP/s", "times torch fp32"],
            rows,
        )
    report.save()


def _rows(shape: tuple[int, int, int], temperature: str, *, quick: bool) -> list[list[str]]:
    rows, inputs, outputs = shape
    x = torch.randn(rows, inputs)
    weight = torch.randn(outputs, inputs)
    functions = {"torch fp32": _calls(weight, temperature, lambda w: partial(torch.nn.functional.linear, x, w))}
    functions["torch bf16"] = _calls(
        weight.bfloat16(), temperature, lambda w: partial(torch.nn.functional.linear, x.bfloat16(), w)
    )
    for bits, group_size in WIDTHS:
        name = f"W{bits}A8 {f'g{group_size}' if group_size else 'per channel'}"
        laid_out = _laid_out(outputs, inputs, bits, group_size or inputs)
        functions[name] = _calls(laid_out, temperature, partial(_call, x))
    rounds = 3 if quick else 50 if rows == 1 else 12
    times = {name: _each(turn) for name, turn in interleaved(functions, rounds).items()}
    return [_row(shape, name, each, times["torch fp32"]) for name, each in times.items()]


def _row(shape: tuple[int, int, int], name: str, times: Times, float_times: Times) -> list[str]:
    rows, inputs, outputs = shape
    speed = 2 * rows * inputs * outputs / times.median / 1e9
    ratio = float_times.median / times.median
    return [f"{rows}, {inputs}, {outputs}; {name}", times.milliseconds(), f"{speed:.0f}", f"{ratio:.1f}"]


def _each(turn: Times) -> Times:
    return Times(tuple(seconds / IN_A_ROW for seconds in turn.seconds))


def _laid_out(outputs: int, inputs: int, bits: int, group_size: int) -> LinearWeight:
    groups = -(-inputs // group_size)
    codes = torch.randint(0, 1 << bits, (outputs, inputs), dtype=torch.uint8)
    zero_point = torch.full((outputs, groups), 1 << (bits - 1), dtype=torch.int32)
    return LinearWeight.of(codes, torch.rand(outputs, groups) + 0.1, zero_point, bits, group_size)


def _call(x: Tensor, weight: LinearWeight) -> Callable[[], Tensor]:
    scale, zero_point = torch.tensor([0.03]), torch.tensor([128], dtype=torch.int32)
    return partial(linear_codes, x, weight, torch.empty(0), scale, zero_point, 0, 255)


def _calls(weight: Any, temperature: str, make: Callable[[Any], Callable[[], Any]]) -> Callable[[], Any]:
    """A call with this weight; where they are to be cold, with one copy of it after another."""
    size = weight.packed.nbytes if isinstance(weight, LinearWeight) else weight.nbytes
    copies = 1 if temperature == "HOT" else -(-COLD_BYTES // size)
    turns = cycle([make(_copied(weight)) for _ in range(copies)])

    def turn() -> None:
        for _ in range(IN_A_ROW):
            next(turns)()

    return turn


def _copied(weight: Any) -> Any:
    if isinstance(weight, LinearWeight):
        parts = (weight.packed, weight.scale, weight.zero_point, weight.sums)
        return LinearWeight(*(x.clone() for x in parts), weight.bits, weight.outputs, weight.inputs, weight.group_size)
    return weight.clone()


if __name__ == "__main__":
    with torch.no_grad():
        main()
