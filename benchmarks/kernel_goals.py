"""The goals of the kernels, and what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ceilings import Ceilings
from measuring import ON_CODES, Case, Measured, Results

from report import Report

FP32, INT8, ORT_W4, ORT_W2 = "torch fp32", "torch int8 (oneDNN)", "onnxruntime W4 g128", "onnxruntime W2 g128"
OPENVINO_W4, FP32_CONVOLUTION = "OpenVINO W4 g128", "torch fp32 channels_last"
INT4_PEERS = (ORT_W4, OPENVINO_W4, "torch int4pack bf16")
INT8_CONVOLUTIONS = (INT8, "onnxruntime int8 in a chain", "OpenVINO int8 in a chain")
CODEBOOKS = ("nf4", "fp4", "a user's 4-bit type")

MET, SHORT = "met", "FELL SHORT"

# What limits a goal that fell short, by the goal's title; written by hand after a run.
LIMITS: dict[str, str] = {
    "W4 g128 x A8, M=1 HOT": (
        "a call has fixed costs of some 15 us (arguments, the row's codes, waking a thread), and scales "
        "in fp32 and sums of codes are read beside the codes; the codes themselves stream from L3 at "
        "half its rate."
    ),
    "W4 g128 x A8, M=1 COLD": (
        "memory, which this machine reads no faster from huge pages; scales in fp32 are a twentieth of what is read."
    ),
    "W2 g128 x A8, M=1 COLD; W3 between W2 and W4": (
        "memory: scales in fp32 and zero points are a tenth of what is read."
    ),
    "W2..W8 x A8, M >= 128": (
        "this processor multiplies twice as fast as the one the kernels were designed for, so what "
        "stands beside the products weighs double: unpacking a slice (7 % of the time), scaling groups "
        "(10 %), quantizing x (5 %), sums that leave the registers between slices. One thread reaches 65 "
        "to 73 % of its ceiling."
    ),
    "W4 x A8, M=16": ("as for M >= 128, with unpacking spread over 16 rows only."),
    "W4 x float activations": ("bf16 is computed in fp32: no kernel uses vdpbf16ps yet."),
    "W1A1 Linear, M >= 16, packing included": (
        "quantizing and packing the rows, which is not overlapped with the products."
    ),
    "W1A1 convolution, the three ResNet shapes": (
        "fixed costs of a call, packing the image, and an epilogue that is as long as the products where "
        "a window has 9 words."
    ),
    "W1A1 convolution, 16 channels": ("packing the image takes as long as the products."),
    "W4A8 and W8A8 convolution": (
        "quantizing the image into a padded plane and summing its places are passes of their own, and "
        "with few channels sums leave the registers after every row of the kernel. oneDNN is given "
        "codes."
    ),
    "AVX2 forced, M=128": ("unpacking for 16 outputs at a time, and sums that leave the registers every 8 steps."),
}


@dataclass(frozen=True)
class Check:
    """One condition of a goal.

    Args:
        case: where, as `Case.key`.
        ours: the layer's name.
        at_least: times as fast as the fastest of `against`, or, where there is none, this share of its ceiling.
        against: other layers.
        is_aim: better than what must be reached.
    """

    case: str
    ours: str
    at_least: float
    against: tuple[str, ...] = ()
    is_aim: bool = False

    @property
    def wanted(self) -> str:
        bound = f"{self.at_least:.0%} of the ceiling"
        if self.against:
            best_of = "the best of " if len(self.against) > 1 else ""
            bound = f"{self.at_least:g}x {best_of}{', '.join(self.against)}"
        return f"{'aim: ' if self.is_aim else ''}at least {bound}"


@dataclass(frozen=True)
class Goal:
    """What is to be reached; all its conditions together."""

    title: str
    checks: tuple[Check, ...]


def goals() -> list[Goal]:
    """Every one."""
    return [*_linear_goals(), *_convolution_goals(), _avx2_goal()]


def _linear_goals() -> list[Goal]:
    one, wide = "Linear M=1", "Linear M=1 wide"
    many = ("Linear M=128 HOT", "Linear M=512 HOT")
    return [
        Goal(
            "W4 g128 x A8, M=1 HOT",
            tuple(
                check
                for case in (f"{one} HOT", f"{wide} HOT")
                for check in (Check(case, "W4A8 g128", 1.6, (ORT_W4,)), Check(case, "W4A8 g128", 45, (FP32,)))
            ),
        ),
        Goal(
            "W4 g128 x A8, M=1 COLD",
            tuple(
                check
                for case in (f"{one} COLD", f"{wide} COLD")
                for check in (
                    Check(case, "W4A8 g128", 1.25, INT4_PEERS),
                    Check(case, "W4A8 g128", 1.5, INT4_PEERS, is_aim=True),
                    Check(case, "W4A8 g128", 0.8, is_aim=True),
                )
            ),
        ),
        Goal(
            "W2 g128 x A8, M=1 COLD; W3 between W2 and W4",
            tuple(
                check
                for case in (f"{one} COLD", f"{wide} COLD")
                for check in (
                    Check(case, "W2A8 g128", 1.6, (ORT_W2,)),
                    Check(case, "W2A8 g128", 1.0, ("W3A8 g128",)),
                    Check(case, "W3A8 g128", 1.0, ("W4A8 g128",)),
                )
            ),
        ),
        Goal(
            "W2..W8 x A8, M >= 128",
            tuple(
                check
                for case in many
                for ours in (f"W{bits}A8 g128" for bits in (2, 3, 4, 8))
                for check in (
                    Check(case, ours, 0.85),
                    Check(case, ours, 1.0, (INT8,)),
                    Check(case, ours, 2.0, (ORT_W4,)),
                    Check(case, ours, 1.2, (OPENVINO_W4,)),
                )
            ),
        ),
        Goal(
            "W4 x A8, M=16",
            (
                Check("Linear M=16 HOT", "W4A8 g128", 0.75),
                Check("Linear M=16 HOT", "W4A8 g128", 1.0, (OPENVINO_W4,)),
            ),
        ),
        Goal(
            "4-bit codebooks, M=1, against int4 with the same activations",
            tuple(
                Check(case, f"{codebook} x {x} g128", 0.9, (int4,))
                for case in (f"{one} HOT", f"{one} COLD")
                for x, int4 in (("A8", "W4A8 g128"), ("fp32", "W4 x fp32 g128"))
                for codebook in CODEBOOKS
            ),
        ),
        Goal(
            "W4 x float activations",
            (
                *(Check(f"{one} HOT", f"W4 x {x} g128", 4.0, (FP32,)) for x in ("fp32", "bf16")),
                *(Check(case, f"W4 x {x} g128", 1.0, (f"torch {x}",)) for case in many for x in ("fp32", "bf16")),
            ),
        ),
        Goal(
            "W1A1 Linear, M >= 16, packing included",
            (
                *(Check(f"Linear {rows} HOT", "W1A1", 0.9) for rows in ("M=16", "M=128", "M=512")),
                Check("Linear M=128 HOT", "W1A1", 25, (FP32,)),
            ),
        ),
    ]


def _convolution_goals() -> list[Goal]:
    shares = {"64 channels": 0.6, "128 channels": 0.7, "256 channels": 0.85}
    return [
        Goal(
            "W1A1 convolution, the three ResNet shapes",
            tuple(
                check
                for name, share in shares.items()
                for ours in ("W1A1", f"W1A1: {ON_CODES}")
                for check in (
                    Check(f"Conv2d {name} HOT", ours, share),
                    Check(f"Conv2d {name} HOT", ours, 14, (FP32_CONVOLUTION,)),
                    Check(f"Conv2d {name} HOT", ours, 3.5, INT8_CONVOLUTIONS),
                )
            ),
        ),
        Goal(
            "W1A1 convolution, 16 channels",
            tuple(
                Check("Conv2d 16 channels HOT", ours, 8, (FP32_CONVOLUTION,)) for ours in ("W1A1", f"W1A1: {ON_CODES}")
            ),
        ),
        Goal(
            "W4A8 and W8A8 convolution",
            tuple(
                Check(f"Conv2d {name} HOT", ours, 1.0, (INT8,))
                for name in (*shares, "16 channels")
                for width in ("W4A8", "W8A8")
                for ours in (width, f"{width}: {ON_CODES}")
            ),
        ),
    ]


def _avx2_goal() -> Goal:
    case = "Linear M=128 HOT avx2"
    names = ("W1A8 g128", "W2A8 g128", "W3A8 g128", "W4A8 g128", "W1A1")
    return Goal("AVX2 forced, M=128", tuple(Check(case, name, 0.7) for name in names))


def report_goals(report: Report, results: Results, ceilings: Ceilings) -> None:
    """A table for each goal whose cases were measured."""
    cases = {case.key: case for case in results.cases()}
    for goal in goals():
        checks = [check for check in goal.checks if check.case in cases]
        if not checks:
            continue
        rows = [_row(cases[check.case], check, results, ceilings) for check in checks]
        report.table(
            f"Goal: {goal.title}",
            ["ours; wanted", "ms: median (quartiles)", "against, ms", "ratio", "of the ceiling", "verdict"],
            rows,
        )
        if any(row[-1] == SHORT for row in rows):
            report.text(f"What limits it: {LIMITS.get(goal.title, 'not looked into yet.')}")


def _row(case: Case, check: Check, results: Results, ceilings: Ceilings) -> list[str]:
    ours = results.judged(check.case, check.ours)
    name = check.ours if ours is None else ours[0]
    title = f"{name}; {case.shape}; {check.wanted}"
    if ours is None:
        return [title, "-", "-", "-", "-", "no kernel yet"]
    measured = ours[1]
    share = measured.share(ceilings)
    first, shown = [title, measured.times.milliseconds()], "-" if share is None else f"{share:.0%}"
    if not check.against:
        return [*first, measured.ceiling, "-", shown, _verdict(share, check.at_least)]
    others = [each for each in (results.judged(check.case, other) for other in check.against) if each]
    if not others:
        return [*first, "-", "-", shown, "nothing to compare with"]
    other, ratio = _fastest(measured, others)
    return [*first, other, f"{ratio:.2f}", shown, _verdict(ratio, check.at_least)]


def _fastest(ours: Measured, others: Sequence[tuple[str, Measured]]) -> tuple[str, float]:
    """The fastest of them, with its time, and how many times its speed ours is."""
    name, measured = min(others, key=lambda each: each[1].times.median)
    return f"{name} {measured.times.milliseconds()}", measured.times.median / ours.times.median


def _verdict(value: float | None, at_least: float) -> str:
    if value is None:
        return "no ceiling measured"
    return MET if value >= at_least else SHORT
