"""Kernels: layers on packed codes beside other libraries', as shares of what this processor can do, against the goals.

HOT calls the same weight again and again; COLD goes round copies of at least 160 MB, as a model of many layers does.
Each library runs in a process of its own, and the processes take turns.
"""

import argparse

import ceilings
import torch
from cases import SEED, avx2_cases, convolution_cases, linear_cases
from ceilings import Ceilings
from contenders import Contenders
from kernel_goals import report_goals
from kernel_memory import report_memory
from kernel_packing import report_packing
from libraries import OWN, installed_peers
from measuring import Results
from own_layers import configurations

from report import Report, parser
from subbyte.kernels import used_isa

SECONDS = 14.0  # of a case
COLD_BYTES = 160 << 20  # several times what caches hold: a call finds nothing of its weight there
LAYERS = {"linear": linear_cases, "convolution": convolution_cases, "avx2": avx2_cases}
SECTIONS = ("ceilings", *LAYERS, "packing", "memory")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=SECTIONS, help="a part, printed and not written")
    _report(arguments.parse_args())


def _report(options: argparse.Namespace) -> None:
    asked = options.only or SECTIONS
    report = Report(
        f"kernels_{used_isa()}", f"Kernels with {used_isa()}", quick=options.quick or options.only is not None
    )
    peers, remarks = installed_peers()
    report.text(
        f"{torch.get_num_threads()} threads; seed {SEED}. Each library runs in a "
        "process of its own; the processes take turns. GOP/s counts a multiplication "
        "and an addition as two. `model` is a model of this one layer, called as a user calls it, quantization of its "
        "input included; `op` are the operators of `torch.ops.subbyte` that it calls, called again without it. Goals "
        "are judged by the op where it does all the work, else by the model."
    )
    report.text(f"Peers: {'; '.join(remarks)}.")
    found = ceilings.measured() if {"ceilings", *LAYERS} & set(asked) else Ceilings((), ())
    if "ceilings" in asked:
        _report_ceilings(report, found)
    with Contenders([*peers, OWN]) as processes:
        results = Results(processes, *((0.1, 1 << 20) if options.quick else (SECONDS, COLD_BYTES)))
        for section, cases in LAYERS.items():
            for case in cases(quick=options.quick) if section in asked else ():
                results.measure(case, [OWN] if case.isa else [*peers, OWN])
    _report_layers(report, results, found)
    report_goals(report, results, found)
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
    missing = _without_kernel(results)
    if missing:
        report.text(f"No kernel yet: {', '.join(missing)}.")


def _without_kernel(results: Results) -> list[str]:
    """Name the configurations that have no kernel in any case."""
    missing = {}
    for case in results.cases():
        measured = {name.partition(": ")[0] for name in results.of(case.key)}
        missing |= {
            f"{case.kind} {name} (`{given}`)": None
            for name, given in configurations(case).items()
            if name not in measured
        }
    return list(missing)


if __name__ == "__main__":
    main()
