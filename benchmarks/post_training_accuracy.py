"""Accuracy of a real network after post-training quantization: every precision with every calibration algorithm.

What is judged is the prepared model, whose forward is that of the converted one, bit for bit; that is asserted on one
batch of each. Drops are against float, sample by sample.
"""

import time
from collections.abc import Iterator
from itertools import product

import torch
from rich.progress import track
from torch import nn

import networks
import subbyte
from networks import Judged, Network, call, judge
from report import Report, parser
from subbyte import PostTrainingQuantConfig

PRECISIONS = ("w8a8", "w6a6", "w4a8", "w4a4", "w3a3", "w2a2", "wbint1a8")
ALGORITHMS = ("minmax", "kl", "mse", "percentile")
QUICK_PRECISIONS, QUICK_ALGORITHMS = ("w8a8", "w4a4", "wbint1a8"), ("minmax", "mse")
FIRST_LAST = ("int8", None)
TOP1_LIMIT = 0.3  # points that w8a8 may lose
SEED = 0
_WEIGHTED = ("Conv2d", "Linear", "Embedding")


def main() -> None:
    arguments = parser(__doc__)
    networks.add_arguments(arguments)
    arguments.add_argument("--precision", nargs="+", help=f"shorthands, printed only ({', '.join(PRECISIONS)})")
    arguments.add_argument("--algorithm", nargs="+", help=f"printed only ({', '.join(ALGORITHMS)})")
    options = arguments.parse_args()
    precisions = options.precision or (QUICK_PRECISIONS if options.quick else PRECISIONS)
    algorithms = options.algorithm or (QUICK_ALGORITHMS if options.quick else ALGORITHMS)
    in_part = options.quick or options.precision or options.algorithm
    network = networks.load(options.network, options.data, quick=options.quick, seed=SEED)
    title = f"Post-training accuracy of {network.name}"
    report = Report(f"post_training_accuracy_{network.name}", title, quick=bool(in_part))
    start = time.perf_counter()
    float_figures = judge(network.model, network)
    report.text(f"{network.data[0].upper()}{network.data[1:]}; seed {SEED}. Metric: {network.metric.name}.")
    report.text(
        "The algorithm finds the ranges of weights and activations alike (bint1 weights always have mean_abs); adds "
        "of shortcuts, and first and last layers where they are int8, keep minmax. A cell: the metric, its change from "
        "fp32, and the standard error of that change, paired."
    )
    jobs = [(*job, ends) for ends in FIRST_LAST for job in product(precisions, algorithms)]
    results = {job: _quantized(network, *job) for job in track(jobs, "quantizing", transient=True)}
    for ends in FIRST_LAST:
        rows = [["fp32", *[f"{float_figures.value:.{network.metric.digits}f}"] * len(algorithms)]]
        for precision in precisions:
            figures = [results[precision, algorithm, ends] for algorithm in algorithms]
            rows.append([precision, *(_cell(each, float_figures, network) for each in figures)])
        heading = f"First and last layer {ends}" if ends else "First and last layer like the rest"
        report.table(heading, ["precision", *algorithms], rows)
    if network.metric.name.startswith("top-1") and "w8a8" in precisions:
        _judge_w8a8(report, results, float_figures)
    report.text(f"Took {time.perf_counter() - start:.0f} s.")
    report.save()


def request(model: nn.Module, precision: str, algorithm: str, first_last: str | None) -> PostTrainingQuantConfig:
    """What is asked of the library: the shorthand with the algorithm; of binary weights with their own."""
    weight_types: dict[str, object] = {}
    if precision.startswith(("wbint1", "w1")):
        weight_types = {name: {"weight": {"algorithm": ["mean_abs"]}} for name in _weighted_types(model)}
    return PostTrainingQuantConfig(
        precision=f"{precision}:{algorithm}", first_last=first_last, op_type_dict=weight_types
    )


def _weighted_types(model: nn.Module) -> Iterator[str]:
    present = {type(module).__name__ for module in model.modules()}
    return (name for name in _WEIGHTED if name in present)


def _quantized(network: Network, precision: str, algorithm: str, first_last: str | None) -> Judged:
    config = request(network.model, precision, algorithm, first_last)
    prepared = subbyte.prepare(network.model, config, network.calibration)
    x = network.test[0][0]
    with torch.no_grad():
        assert torch.equal(call(subbyte.convert(prepared), x), call(prepared, x)), (
            f"{config}: converted differs from prepared"
        )
    return judge(prepared, network)


def _cell(figures: Judged, reference: Judged, network: Network) -> str:
    change, digits = figures.change_from(reference), network.metric.digits
    return f"{figures.value:.{digits}f} ({change.value:+.{digits}f} ± {change.error:.{digits}f})"


def _judge_w8a8(report: Report, results: dict[tuple[str, str, str | None], Judged], reference: Judged) -> None:
    changes = {
        f"{algorithm}{f', first and last {ends}' if ends else ''}": figures.change_from(reference).value
        for (precision, algorithm, ends), figures in results.items()
        if precision == "w8a8"
    }
    name, change = min(changes.items(), key=lambda item: item[1])
    got = f"{change:+.2f} points at the worst ({name})"
    report.goal(f"w8a8 within {TOP1_LIMIT} points of fp32", got, met=change >= -TOP1_LIMIT)


if __name__ == "__main__":
    main()
