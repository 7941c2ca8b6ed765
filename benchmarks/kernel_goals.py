"""The goals of the kernels, and what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from cases import Case
from ceilings import Ceilings
from measuring import Measured, Results
from own_layers import ON_CODES

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
        "the L3 cache: codes and fp32 scales stream at three quarters of its rate, and what its rate allows "
        "is 1.3 times onnxruntime here. A call's arguments and the row's codes take 6 us, waking a thread as "
        "much again."
    ),
    "W4 g128 x A8, M=1 COLD": (
        "memory, which two threads read no faster from huge pages here and of which onnxruntime takes as "
        "large a share; scales in fp32 are a twentieth of what is read."
    ),
    "W2 g128 x A8, M=1 COLD; W3 between W2 and W4": (
        "memory, as at 4 bits; scales in fp32 are a tenth of what is read, and onnxruntime's 2 bits read as little."
    ),
    "W2..W8 x A8, M >= 128": (
        "one thread reaches 80 % of its ceiling at groups of 128 and 90 % per channel with its codes at hand;"
        " the rest is scaling groups (one of each 128 inputs), unpacking (4 %), quantizing x, and a second "
        "thread that other work on this machine holds up: an earlier run gave 80 % of the ceiling at M=128."
    ),
    "W4 x A8, M=16": ("as for M >= 128: groups are scaled after 32 steps of 16 sums."),
    "4-bit codebooks, M=1, against int4 with the same activations": (
        "one more instruction for each 64 codes, which shows now that int4 waits for nothing but the cache."
    ),
    "W4 x float activations": ("unpacking to bf16 for 128 rows at a time; within the spread of torch's bf16."),
    "W1A1 Linear, M >= 16, packing included": (
        "quantizing and packing the rows, which is not overlapped with the products: those alone run at 98 %."
    ),
    "W1A1 convolution, the three ResNet shapes": (
        "fixed costs of a call (6 us) and of waking a thread, packing the image, an epilogue a quarter as "
        "long as the products where a window has 9 words; on codes, results are clamped and packed in passes "
        "of their own."
    ),
    "W1A1 convolution, 16 channels": (
        "comparing pixels of 16 floats and joining the bits of three takes as long as the products."
    ),
    "W4A8 and W8A8 convolution": (
        "with few channels, tiles of one panel and sums of windows; on codes, shifting bytes into a plane and"
        " finishing results in passes of their own, which cost more than floats do when these lie in a cache."
        " oneDNN is given codes and writes floats."
    ),
    "AVX2 forced, M=128": (
        "a second thread that other work on this machine holds up: the quartiles lie far apart, and an "
        "earlier run gave 77 to 78 % at every width."
    ),
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
