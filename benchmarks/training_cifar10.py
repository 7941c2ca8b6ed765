"""Training ResNet-20 on CIFAR-10, from pretrained weights: 4, 3, 2 bits and 1, first and last layer int8.

It runs on a GPU where one is there. Every figure is of a process of its own and kept; a training is kept after each
epoch too, so that an interrupted run goes on where it was.
"""

import time
from argparse import Namespace
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import jobs
import torch
import torch.nn.functional as F
import training_cifar10_plan as plan
import training_precisions as precisions
from jobs import Job, Outcome
from networks.batches import ShuffledBatches, cropped_and_mirrored
from networks.block_for_signs import BlockForSigns
from networks.images import normalized, pretrained, training_pixels
from networks.resnet_cifar import BasicBlock
from torch import Tensor, nn
from training_cifar10_plan import FOR_SIGNS, PLAIN, TUNED, Recipe
from training_precisions import FLOAT
from training_table import Row, cells, columns

import networks
import subbyte
from report import Report, parser

TRAININGS = jobs.KEPT.parent / "trainings"
QUICK_IMAGES, TIMED_STEPS = 640, 5


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments = parser(__doc__)
    networks.add_data_argument(arguments)
    jobs.add_arguments(arguments)
    arguments.add_argument("--device", choices=list(plan.EPOCHS), default=device, help="(%(default)s)")
    arguments.add_argument("--epochs", type=int, help=f"of each training ({plan.EPOCHS}, by device)")
    arguments.add_argument("--seeds", nargs="+", type=int, help=f"of batches ({plan.SEEDS}, by device)")
    arguments.add_argument(
        "--precision", nargs="+", choices=list(precisions.CONFIGS), help="some (cpu: those with goals)"
    )
    options = arguments.parse_args()
    options.epochs = options.epochs or (plan.QUICK_EPOCHS if options.quick else plan.EPOCHS[options.device])
    options.seeds = options.seeds or (plan.QUICK_SEEDS if options.quick else plan.SEEDS[options.device])
    if options.job:
        jobs.run_child(options, lambda job: _run(job, options))
        return
    goals = plan.DROPS[options.device]
    options.precision = options.precision or (list(precisions.CONFIGS) if options.quick else list(goals))
    network = networks.load(PLAIN, options.data, quick=options.quick)
    in_part = options.quick or not goals.keys() <= set(options.precision)
    report = Report(f"training_cifar10_{options.device}", "Training ResNet-20 on CIFAR-10", quick=in_part)
    _tell(report, options)
    if options.device == "cpu":
        _tell_times(report, network, options)
    rows = _measure(options)
    report.table(
        "Top-1 after training",
        columns(["network", "weights/inputs", "trained"], network.metric),
        [cells(row, rows[FLOAT], network.metric) for row in rows.values()],
    )
    _judge_goals(report, rows, network.metric, options)
    report.save()


def _measure(options: Namespace) -> dict[str, Row]:
    """By precision. First the float network alone: all others need it."""
    trained = f"{options.epochs} epochs on {options.device}"
    planned = {
        precision: [Job(plan.NETWORKS[precision], precision, trained, seed, options.quick) for seed in options.seeds]
        for precision in _wanted(options)
    }
    if options.again:
        for job in chain(*planned.values()):
            _file(job, options).unlink(missing_ok=True)
    passed_on = ["--data", options.data, "--device", options.device, "--epochs", options.epochs]
    outcomes = jobs.run_all(planned[TUNED], passed_on, options)
    outcomes |= jobs.run_all(list(chain(*(planned[name] for name in planned if name != TUNED))), passed_on, options)
    return {
        name: Row((each[0].network, name, trained), [outcomes[job] for job in each]) for name, each in planned.items()
    }


def _wanted(options: Namespace) -> list[str]:
    return [TUNED, FLOAT, *options.precision]


def _run(job: Job, options: Namespace) -> Outcome:
    """For the child: train and judge."""
    network = networks.load(PLAIN, options.data, quick=job.quick, seed=job.seed)
    started = time.perf_counter()
    model, teacher = _to_train(job, network, options)
    started = time.perf_counter() - started
    result = _train(model, job, network, options, teacher)
    model = result.model.cpu()
    seconds = started + sum(epoch.seconds for epoch in result.history)  # those before an interruption are among them
    size = sum(each.nbytes for each in model.parameters())
    if job.precision not in (TUNED, FLOAT):
        model, size = precisions.packed(model, [inputs for inputs, _ in network.test])
    return Outcome(networks.judge(model, network).samples.tolist(), seconds, size=size)


def _to_train(job: Job, network: networks.Network, options: Namespace) -> tuple[nn.Module, nn.Module | None]:
    """The model as its training begins, and the teacher."""
    if job.precision == TUNED:
        return network.model, None
    teacher = _train(network.model, replace(job, network=PLAIN, precision=TUNED), network, options).model.eval()
    model = pretrained(PLAIN, options.data, BlockForSigns if job.network == FOR_SIGNS else BasicBlock)
    model.load_state_dict(teacher.state_dict(), strict=False)
    if job.precision != FLOAT:
        recipe = plan.RECIPES[job.precision]
        first, methods = recipe.begins or job.precision, plan.recover(recipe, quick=job.quick)
        model = precisions.to_train(model, first, network.calibration, methods)
    return model, teacher


def _train(
    model: nn.Module, job: Job, network: networks.Network, options: Namespace, teacher: nn.Module | None = None
) -> subbyte.TrainingResult:
    """Train; where a file keeps the training of this job go on from there, which may be its end."""
    recipe, file = plan.RECIPES[job.precision], _file(job, options)
    file.parent.mkdir(parents=True, exist_ok=True)
    model = model.to(options.device, memory_format=torch.channels_last)  # a fifth faster on a CPU
    distill = None if teacher is None or recipe.distill is None else subbyte.Distillation(teacher, **recipe.distill)
    return subbyte.train(
        model, _batches(job, options), F.cross_entropy, seed=job.seed, checkpoint=file,
        distill=distill, data=[batch.to(options.device) for batch in network.calibration], epochs=options.epochs,
        optimizer=_optimizer(recipe), lr_schedule="CosineAnnealingLR",
        stages=[{"at": at, "config": precisions.request(precision)} for at, precision in recipe.stages],
    )  # fmt: skip


def _optimizer(recipe: Recipe) -> dict[str, object]:
    return {"SGD": {"lr": recipe.rate, "momentum": plan.MOMENTUM, "nesterov": True, "weight_decay": recipe.decay}}


def _batches(job: Job, options: Namespace) -> ShuffledBatches:
    images, labels = _pixels(options.data, _images(job.quick), options.device)
    return ShuffledBatches(images, labels, plan.BATCH, job.seed, _changed)


@cache
def _pixels(data: Path, count: int, device: str) -> tuple[Tensor, Tensor]:
    """Decoded once, for the teacher's training and for that of the job."""
    images, labels = training_pixels(data, count)
    return images.to(device), labels.to(device)


def _changed(images: Tensor, generator: torch.Generator) -> Tensor:
    return normalized(cropped_and_mirrored(images, generator)).contiguous(memory_format=torch.channels_last)


def _images(quick: bool) -> int:
    return QUICK_IMAGES if quick else 50_000


def _file(job: Job, options: Namespace) -> Path:
    """That keeps the training of a job."""
    name = f"{job.network} {job.precision} {job.method} {job.seed}{' quick' * job.quick}"
    return TRAININGS / f"{''.join(letter if letter.isalnum() else '-' for letter in name)}.pt"


def _tell(report: Report, options: Namespace) -> None:
    report.text(
        f"The pretrained network is trained in float for {options.epochs} epochs of {_images(options.quick):,} images "
        f"('{TUNED}'), and from there in each precision for as many again, float too, which is what the others are "
        f"compared with. Images are moved by up to four pixels and mirrored at random, batches have {plan.BATCH}. "
        f"SGD with Nesterov's momentum {plan.MOMENTUM}, its rate falling along half a cosine. Seeds "
        f"{', '.join(map(str, options.seeds))}: of batches and calibration images. The first half is the teacher of "
        "the quantized ones. 1/1 is of the same convolutions with a skip past each, learned shifts and RPReLU."
    )
    report.text(
        "Judged on 5,000 test images; what is judged is the packed model on the kernels, of which it was checked on "
        "all of them that it gives what the trained one gives in eval(). Changes are from fp32 of the same seed, "
        "paired image by image: the mean over seeds with its 95 % interval, and the worst and the best seed. "
        "Minutes are those of the row's training on the clock, its better start included. Bytes are those of the "
        f"whole model. {jobs.how(options)}"
    )
    columns_of = ["weights/inputs", "rate", "decay", "start", "stages", "teacher"]
    report.table("Recipes", columns_of, [[name, *_in_words(plan.RECIPES[name])] for name in _wanted(options)])


def _in_words(recipe: Recipe) -> list[str]:
    stages = [f"{precision} from {at:.0%} on" for at, precision in ((0.0, recipe.begins), *recipe.stages) if precision]
    terms = ", ".join(f"{name} {value:g}" for name, value in (recipe.distill or {}).items())
    start = ", ".join(recipe.recover) or "-"
    return [f"{recipe.rate:g}", f"{recipe.decay:g}", start, "; ".join(stages) or "-", terms or "-"]


def _tell_times(report: Report, network: networks.Network, options: Namespace) -> None:
    """What an epoch will take here."""
    inputs, labels = (torch.cat(parts)[: plan.BATCH] for parts in zip(*network.test, strict=True))
    prepared = precisions.to_train(network.model, "2/2", network.calibration)
    epochs = {}
    for name, model, teacher in ((FLOAT, network.model, None), ("2/2", prepared, network.model)):
        distill = None if teacher is None else subbyte.Distillation(teacher, **plan.TEACHER)
        batches = [(inputs.contiguous(memory_format=torch.channels_last), labels)] * TIMED_STEPS
        model = model.to(memory_format=torch.channels_last)
        result = subbyte.train(model, batches, F.cross_entropy, distill=distill, epochs=2)
        epochs[name] = result.history[-1].seconds / TIMED_STEPS * (50_000 // plan.BATCH)  # the first warms up
    told = ", ".join(f"of {name} about {seconds:.0f} s" for name, seconds in epochs.items())
    report.text(f"An epoch of all 50,000 images takes here, by {TIMED_STEPS} steps: {told}.")


def _judge_goals(report: Report, rows: dict[str, Row], metric: networks.Metric, options: Namespace) -> None:
    for precision, allowed in plan.DROPS[options.device].items():
        row = rows.get(precision)
        if row is None:
            continue
        wanted = f"{precision} at most {allowed:g} points below fp32"
        if options.device == "cpu":
            wanted += f", in at most {plan.CLOCK_MINUTES:g} minutes of {plan.CORES} cores"
        if row.problem or rows[FLOAT].problem:
            report.goal(wanted, row.problem or rows[FLOAT].problem, met=False)
            continue
        drop = -row.change_from(rows[FLOAT], metric).value
        minutes = max(outcome.seconds for outcome in row.outcomes) / 60 * jobs.threads(options) / plan.CORES
        in_time = options.device != "cpu" or minutes <= plan.CLOCK_MINUTES
        report.goal(wanted, f"{drop:.2f} in {minutes:.0f} minutes", met=drop <= allowed and in_time)


if __name__ == "__main__":
    main()
