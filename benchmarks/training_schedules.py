"""What schedules and distillation gain in a short training at two bits, first and last layer int8.

Every figure is of a process of its own and kept, so that an interrupted run goes on where it was.
"""

from argparse import Namespace
from copy import deepcopy
from typing import Any

import jobs
import torch.nn.functional as F
from jobs import Job, Outcome
from networks.images import training_batches
from recovery_table import Row
from torch import nn

import networks
import subbyte
from report import Report, parser

STEPS, QUICK_STEPS, BATCH, SEEDS = 150, 4, 64, (0,)
FLOAT, PLAIN = "fp32, trained as long", "two bits from the first step on"
BITS = [{"at": 0.1, "config": "w4a4"}, {"at": 0.2, "config": "w3a3"}, {"at": 0.3, "config": "w2a2"}]

# The configuration that training begins with, the plan beside what all have, and the terms of distillation.
SCHEDULES: dict[str, tuple[str | None, dict[str, Any], dict[str, Any] | None]] = {
    FLOAT: (None, {}, None),
    PLAIN: ("w2a2", {}, None),
    "8, 4, 3, then 2 bits": ("w8a8", {"stages": BITS}, None),
    "activations from 30 % on": ("w2", {"stages": [{"at": 0.3, "config": "w2a2"}]}, None),
    "BatchNorm found anew": ("w2a2", {"reestimate_batch_norm": True}, None),
    "BatchNorm frozen from 80 % on": ("w2a2", {"freeze_batch_norm": 0.8}, None),
    "distillation: logits": ("w2a2", {}, {}),
    "distillation: logits and blocks": ("w2a2", {}, {"blocks": 1.0}),
    "8, 4, 3, then 2 bits; logits": ("w8a8", {"stages": BITS}, {}),
}


def main() -> None:
    arguments = parser(__doc__)
    networks.add_arguments(arguments, networks.IMAGE_NETWORKS)
    jobs.add_arguments(arguments)
    arguments.add_argument("--schedule", nargs="+", choices=SCHEDULES, help="some of them, printed only")
    arguments.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="of batches (%(default)s)")
    options = arguments.parse_args()
    if options.job:
        jobs.run_child(options, lambda job: _run(job, options))
        return
    network = networks.load(options.network, options.data, quick=options.quick)
    in_part = options.quick or bool(options.schedule)
    report = Report(f"training_schedules_{network.name}", f"Schedules of training {network.name}", quick=in_part)
    names = [FLOAT, PLAIN, *(name for name in options.schedule or SCHEDULES if name not in (FLOAT, PLAIN))]
    planned = [[Job(network.name, "w2a2", name, seed, options.quick) for seed in options.seeds] for name in names]
    outcomes = jobs.run_all([job for each in planned for job in each], ["--data", options.data], options)
    rows = [Row(each[0].method, [outcomes[job] for job in each]) for each in planned]
    report.text(
        f"{QUICK_STEPS if options.quick else STEPS} steps of SGD (0.01, falling along a cosine) on batches of {BATCH} "
        f"training images, from the pretrained weights; {len(options.seeds)} seeds of batches. Changes are paired, "
        f"image by image, with 95 % intervals. {jobs.how(options)}"
    )
    report.table(
        "Two bits", ["", network.metric.name, "change from fp32", "gain over plain", "CPU minutes"],
        [_cells(row, rows[0], rows[1], network.metric) for row in rows],
    )  # fmt: skip
    report.save()


def _run(job: Job, options: Namespace) -> Outcome:
    network = networks.load(job.network, options.data, quick=job.quick)
    batches = training_batches(options.data, QUICK_STEPS if job.quick else STEPS, BATCH, job.seed)
    return jobs.measured(lambda: _trained(network, job, batches), lambda model: networks.judge(model, network))


def _trained(network: networks.Network, job: Job, batches: Any) -> nn.Module:
    config, plan, terms = SCHEDULES[job.method]
    if config is None:
        model = deepcopy(network.model)
    else:
        model = subbyte.prepare_qat(network.model, config, network.calibration, first_last="int8")
    result = subbyte.train(
        model, batches, F.cross_entropy, data=network.calibration, seed=job.seed, epochs=1,
        distill=None if terms is None else subbyte.Distillation(network.model, **terms),
        optimizer={"SGD": {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}}, lr_schedule="CosineAnnealingLR",
        **plan,
    )  # fmt: skip
    return result.model if config is None else subbyte.convert(result.model)


def _cells(row: Row, reference: Row, plain: Row, metric: networks.Metric) -> list[str]:
    if row.problem:
        return [row.label, row.problem, "-", "-", "-"]
    changes = [_change(row, other, metric) if other is not row else "-" for other in (reference, plain)]
    if row is reference:
        changes[1] = "-"
    return [row.label, f"{row.value(metric):.{metric.digits}f}", *changes, f"{row.minutes:.1f}"]


def _change(row: Row, other: Row, metric: networks.Metric) -> str:
    change = networks.average(row.changes_from(other, metric))
    low, high = change.interval
    return f"{change.value:+.{metric.digits}f} ({low:+.{metric.digits}f} .. {high:+.{metric.digits}f})"


if __name__ == "__main__":
    main()
