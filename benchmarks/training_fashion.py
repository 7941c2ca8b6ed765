"""Training a small network on Fashion-MNIST from scratch: 4, 3, 2 bits and 1, beside Brevitas's quantizers.

All are trained by the same loop, for as long, on the same batches, from the same weights. Every figure is of a process
of its own and kept, so that an interrupted run goes on where it was.
"""

import time
from argparse import Namespace
from itertools import chain

import jobs
import torch
import torch.nn.functional as F
import training_precisions as precisions
from jobs import Job, Outcome
from networks.batches import ShuffledBatches
from peers_recovery import Setting, installed
from torch import Tensor, nn
from training_precisions import FLOAT
from training_table import Row, cells, columns

import networks
import subbyte
from networks import fashion
from report import Report, parser

SEEDS, BATCH, EPOCHS = (0, 1, 2), 128, 5
QUICK_SEEDS, QUICK_IMAGES, QUICK_EPOCHS = (0,), 1280, 1
RATE, DECAY = 0.005, 1e-4
PLAIN, FOR_SIGNS = "plain", "for signs"
PYTORCH, OURS, BREVITAS, OF_INTEGERS = "PyTorch", "subbyte", "Brevitas", "Brevitas, integer quantizers"
ROWS = (
    (PLAIN, FLOAT, PYTORCH),
    *((PLAIN, precision, by) for precision in ("4/4", "3/3", "2/2", "1/32") for by in (OURS, BREVITAS)),
    (PLAIN, "1/32", OF_INTEGERS),
    (FOR_SIGNS, FLOAT, PYTORCH),
    *((FOR_SIGNS, "1/1", by) for by in (OURS, BREVITAS, OF_INTEGERS)),
)


def main() -> None:
    arguments = parser(__doc__)
    networks.add_data_argument(arguments)
    jobs.add_arguments(arguments)
    arguments.add_argument("--precision", nargs="+", choices=[FLOAT, *precisions.CONFIGS], help="some; printed only")
    arguments.add_argument("--seeds", nargs="+", type=int, help=f"printed only ({', '.join(map(str, SEEDS))})")
    options = arguments.parse_args()
    networks.need_files("Fashion-MNIST", fashion.FILES, options.data)
    if options.job:
        jobs.run_child(options, lambda job: _run(job, options))
        return
    in_part = bool(options.quick or options.precision or options.seeds)
    report = Report("training_fashion", "Training a small network on Fashion-MNIST", quick=in_part)
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    asked = [row for row in ROWS if not options.precision or row[1] in {FLOAT, *options.precision}]
    planned = [[Job(*row, seed, options.quick) for seed in seeds] for row in asked]
    outcomes = jobs.run_all(list(chain(*planned)), ["--data", options.data], options)
    rows = [Row(row, [outcomes[job] for job in each]) for row, each in zip(asked, planned, strict=True)]
    _tell(report, rows, seeds, options)
    report.save()


def _tell(report: Report, rows: list[Row], seeds: tuple[int, ...], options: Namespace) -> None:
    report.text(
        f"A convolution, five blocks of one convolution with a skip, a Linear: 74 thousand weights, from scratch, "
        f"{QUICK_EPOCHS if options.quick else EPOCHS} epochs of "
        f"{f'{QUICK_IMAGES:,}' if options.quick else '60,000'} images in batches of {BATCH}, by AdamW "
        f"(decay {DECAY:g}) with one cycle of the learning rate up to {RATE:g}. First and last layer have int8 "
        f"weights and inputs in all rows but fp32, residual adds are float. Seeds {', '.join(map(str, seeds))}: of the "
        "weights at first, of the batches and of the calibration images."
    )
    report.text(
        "`plain` has ReLU. `for signs` has learned shifts before its convolutions and RPReLU, since what ReLU gives "
        "has no sign to tell; its 1/1 rows are to be read beside its own fp32. Ours are LSQ, and at one bit the "
        "clipped identity of weights and ApproxSign of inputs: with seed 0, standardized weights had been seen to lose "
        "0.7 points more at 1/32 and 0.9 more at 1/1. What is judged is the packed model on the kernels, of which it "
        "was checked on all test images that it gives what the trained one gives in eval(). "
        f"{installed('Brevitas')}: integer quantizers with learned scales, at one bit its binary quantizers "
        "and, as another row, the integer ones asked for one bit, whose values are then -1 and 0."
    )
    report.text(
        "Changes are from fp32 of the same network and seed, paired image by image: the mean over seeds with its 95 % "
        "interval, and the worst and the best seed. Minutes are those of the processor in training, by all threads. "
        f"Bytes are those of the packed model, everything included. {jobs.how(options)}"
    )
    metric = fashion.TOP1
    references = {row.labels[0]: row for row in rows if row.labels[1] == FLOAT}
    report.table(
        "Top-1 after training",
        columns(["network", "weights/inputs", "by"], metric),
        [cells(row, references[row.labels[0]], metric) for row in rows],
    )
    for row in rows:
        if row.problem:
            report.text(f"{', '.join(row.labels)}: {row.problem}")


def _run(job: Job, options: Namespace) -> Outcome:
    """For the child: train and judge."""
    network = fashion.untrained(options.data, for_signs=job.network == FOR_SIGNS, quick=job.quick, seed=job.seed)
    model, start = _to_train(network, job), time.process_time()
    model = _trained(model, job, options)
    seconds, size = time.process_time() - start, sum(each.nbytes for each in model.state_dict().values())
    if job.method == OURS:
        model, size = precisions.packed(model, [inputs for inputs, _ in network.test])
    elif job.precision != FLOAT:
        size = 0  # Brevitas keeps float weights
    return Outcome(networks.judge(model, network).samples.tolist(), seconds, size=size)


def _to_train(network: networks.Network, job: Job) -> nn.Module:
    if job.precision == FLOAT:
        return network.model
    if job.method == OURS:
        return precisions.to_train(network.model, job.precision, network.calibration)
    from peers_training import of_brevitas

    weight_bits, activation_bits = precisions.BITS[job.precision]
    setting = Setting(weight_bits, activation_bits=activation_bits, wide=("stem", "head"))
    quantizers = of_brevitas.INTEGERS if job.method == OF_INTEGERS else of_brevitas.BINARY_AT_ONE_BIT
    return of_brevitas.to_train(network.model, setting, network.calibration[0], quantizers)


def _trained(model: nn.Module, job: Job, options: Namespace) -> nn.Module:
    images, labels = fashion.read(options.data / fashion.FILES[0])
    count = QUICK_IMAGES if job.quick else len(images)
    batches = ShuffledBatches(images[:count], labels[:count], BATCH, job.seed, _as_they_are)
    return subbyte.train(
        model, batches, F.cross_entropy, seed=job.seed, epochs=QUICK_EPOCHS if job.quick else EPOCHS,
        optimizer={"AdamW": {"lr": RATE, "weight_decay": DECAY}}, lr_schedule={"OneCycleLR": {"max_lr": RATE}},
    ).model  # fmt: skip


def _as_they_are(images: Tensor, generator: torch.Generator) -> Tensor:
    return fashion.normalized(images)


if __name__ == "__main__":
    main()
