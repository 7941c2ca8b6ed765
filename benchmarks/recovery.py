"""Recovering accuracy without training: what each method gains, the minutes it takes, and its peak memory.

Every figure is of a process of its own and kept, so that an interrupted run goes on where it was.
"""

import sys
from argparse import Namespace
from itertools import chain

import jobs
import recovery_plan as plan
import torch
from jobs import Job, Outcome
from recovery_plan import FLOAT, NONE, QUICK_SEEDS, SEEDS
from recovery_table import Row, cells, cells_of_float, columns, state_goal

import networks
import subbyte
from report import Report, parser


def main() -> None:
    arguments = parser(__doc__)
    networks.add_arguments(arguments, list(plan.PRECISIONS))
    jobs.add_arguments(arguments)
    arguments.add_argument("--precision", nargs="+", help="some of the plan's, printed only")
    arguments.add_argument("--method", nargs="+", help="some of the plan's, as in 'clip + gptq'; printed only")
    arguments.add_argument("--seeds", nargs="+", type=int, help=f"printed only ({', '.join(map(str, SEEDS))})")
    options = arguments.parse_args()
    if options.job:
        jobs.run_child(options, lambda job: _run(job, options))
        return
    network = networks.load(options.network, options.data, quick=options.quick)
    _check(options)
    in_part = options.quick or options.precision or options.method or options.seeds
    report = Report(f"recovery_{network.name}", f"Recovering accuracy of {network.name}", quick=bool(in_part))
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    report.text(
        f"{network.data[0].upper()}{network.data[1:]}. Metric: {network.metric.name}. Seeds of the calibration samples "
        f"and of the methods: {', '.join(map(str, seeds))}."
    )
    report.text(
        "The metric is the mean over seeds; its change from fp32 and the gain over min-max alone are paired, sample by "
        "sample, with 95 % intervals; a gain above zero is for the better. Under seeds stand the changes of the worst "
        "and of the best one. CPU minutes (of all threads) and memory are those of `prepare`, calibration included, of "
        "the slowest seed; memory is by how much the process grew at most. What is judged is the packed model, "
        f"run by the kernels. {jobs.how(options)}"
    )
    for precision in options.precision or _precisions(options):
        _report_precision(report, precision, seeds, options)
    report.save()


def _precisions(options: Namespace) -> list[str]:
    return plan.QUICK_PRECISIONS[options.network] if options.quick else list(plan.PRECISIONS[options.network])


def _check(options: Namespace) -> None:
    """End the script where the plan has no such precision or method."""
    for given, known in (
        (options.precision, plan.PRECISIONS[options.network]),
        (options.method, plan.METHODS[options.network]),
    ):
        wrong = [name for name in given or () if name not in known]
        if wrong:
            sys.exit(f"{wrong[0]!r} is not in the plan of {options.network}, which has: {', '.join(known)}")


def _report_precision(report: Report, precision: str, seeds: list[int], options: Namespace) -> None:
    asked, metric = plan.PRECISIONS[options.network][precision], networks.NETWORKS[options.network].metric
    methods = options.method or (plan.QUICK_METHODS if options.quick else plan.methods(options.network, precision))
    wanted = [(FLOAT, NONE), *((precision, method) for method in dict.fromkeys([NONE, *methods]))]
    planned = [[Job(options.network, *pair, seed, options.quick) for seed in seeds] for pair in wanted]
    outcomes = jobs.run_all(list(chain(*planned)), ["--data", options.data], options)
    reference, *rows = (Row(each[0].method, [outcomes[job] for job in each]) for each in planned)
    shown = [cells_of_float(reference, metric), *(cells(row, reference, rows[0], metric) for row in rows)]
    report.table(f"{precision} ({asked.remark})", columns(metric), shown)
    for row in rows:
        if row.problem:
            report.text(f"{row.label}: {row.problem}")
    if asked.loss is not None:
        state_goal(report, precision, asked.loss, rows, reference, metric)


def _run(job: Job, options: Namespace) -> Outcome:
    """For the child: quantize and judge."""
    network = networks.load(job.network, options.data, quick=job.quick, seed=job.seed)
    if job.precision == FLOAT:
        return jobs.measured(lambda: network.model, lambda model: networks.judge(model, network))
    config = plan.PRECISIONS[job.network][job.precision].config
    methods = plan.recover(job.method, job.network, quick=job.quick)

    def prepared() -> torch.nn.Module:
        return subbyte.prepare(network.model, config, network.calibration, recover=methods, seed=job.seed)

    def judged(model: torch.nn.Module) -> networks.Judged:
        x, converted = network.test[0][0], subbyte.convert(model)
        with torch.no_grad():
            assert torch.equal(networks.call(converted, x), networks.call(model, x)), (
                "the converted model differs from the prepared one"
            )
        subbyte.use_kernels(converted)
        return networks.judge(converted, network)

    return jobs.measured(prepared, judged)


if __name__ == "__main__":
    main()
