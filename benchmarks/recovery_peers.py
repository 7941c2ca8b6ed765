"""The methods that recover accuracy beside the same ones in other libraries: same data, same bits, same judge.

Every figure is of a process of its own and kept, as in `recovery.py`. What a library does not do is stated with what it
said.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import jobs
import peers_recovery
from jobs import Job, Outcome
from peers_recovery import Setting
from recovery_plan import FLOAT, NONE, QUICK_SEEDS, SEEDS
from recovery_table import Row, cells, cells_of_float, columns
from torch import nn

import networks
import subbyte
from report import Report, parser
from subbyte import PostTrainingQuantConfig

OWN = "Subbyte"


@dataclass(frozen=True)
class Case:
    """A network, how it is quantized, and who does that.

    Args:
        network: by name.
        title: how it is quantized, in words.
        setting: the same for the other libraries.
        config: the same for ours.
        methods: of each library; `none` is rounding to nearest.
    """

    network: str
    title: str
    setting: Setting
    config: PostTrainingQuantConfig
    methods: dict[str, Sequence[str]]


def _image_weights(bits: int) -> Case:
    config = PostTrainingQuantConfig(precision=f"w{bits}:minmax", op_name_dict={"conv1": "w8", "linear": "w8"})
    methods = {OWN: [NONE, "gptq"], "Brevitas": [NONE, "gptq", "gptq, scales not fixed"]}
    title = f"weights of {bits} bits, sym, one scale for each output; first and last 8 bits; activations float"
    return Case("resnet20", title, Setting(bits, wide=("conv1", "linear")), config, methods)


def _image_activations(bits: int) -> Case:
    methods = {
        OWN: [NONE, "bias_correction"],
        "NNCF": [NONE, "bias correction, fast", "bias correction, full"],
    }
    config = PostTrainingQuantConfig(precision=f"w{bits}a8:minmax")
    title = f"weights of {bits} bits, activations of 8, first and last layer like the rest"
    return Case("resnet20", title, Setting(bits, activation_bits=8), config, methods)


def _llama_weights(bits: int) -> Case:
    config = PostTrainingQuantConfig(
        precision=f"w{bits}:g32:minmax",
        op_type_dict={"Embedding": "fp32", "Linear": {"weight": {"scheme": ["asym"]}}},
        op_name_dict={"head": "fp32"},
    )
    methods = {
        OWN: [NONE, "gptq", "awq", "hqq"],
        "Neural Compressor": [NONE, "gptq", "awq", "hqq"],
        "torchao": [NONE, "gptq", "awq", "hqq"],
    }
    title = f"weights of the linear maps within blocks, {bits} bits, asym, groups of 32"
    setting = Setting(bits, group_size=32, symmetric=False, left_float=("head",))
    return Case("stories260K", title, setting, config, methods)


def _bert_activations() -> Case:
    config = PostTrainingQuantConfig(
        precision="w8a8:dynamic", op_type_dict={"Embedding": "fp32", "scaled_dot_product_attention": "fp32"}
    )
    methods = {OWN: [NONE, "smoothquant"], "torchao": [NONE, "smoothquant"]}
    title = "linear maps, weights of 8 bits, activations of 8 ranged as they come, one range for each token"
    return Case("minilm", title, Setting(8, activation_bits=8, dynamic=True), config, methods)


CASES = {
    "resnet20 w3": _image_weights(3),
    "resnet20 w2": _image_weights(2),
    "resnet20 w8a8": _image_activations(8),
    "stories260K w4:g32": _llama_weights(4),
    "stories260K w3:g32": _llama_weights(3),
    "minilm w8a8:dynamic": _bert_activations(),
}
QUICK_CASES = ("resnet20 w3", "resnet20 w8a8", "stories260K w3:g32")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--case", nargs="+", choices=list(CASES), help="printed only")
    arguments.add_argument("--seeds", nargs="+", type=int, help=f"printed only ({', '.join(map(str, SEEDS))})")
    networks.add_data_argument(arguments)
    jobs.add_arguments(arguments)
    options = arguments.parse_args()
    if options.job:
        jobs.run_child(options, lambda job: _run(job, options))
        return
    in_part = options.quick or options.case or options.seeds
    report = Report("recovery_peers", "Recovery methods beside those of other libraries", quick=bool(in_part))
    report.text(", ".join(peers_recovery.installed(name) for name in peers_recovery.PEERS) + ".")
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    report.text(
        f"Seeds of the calibration samples: {', '.join(map(str, seeds))}. The columns are those of the tables of "
        f"`recovery.py`; a gain is over the same library's rounding to nearest. {jobs.how(options)}"
    )
    for name in options.case or (QUICK_CASES if options.quick else CASES):
        _report_case(report, name, seeds, options)
    report.save()


def _report_case(report: Report, name: str, seeds: Sequence[int], options: Namespace) -> None:
    case = CASES[name]
    problem = networks.missing(case.network, options.data)
    if problem:
        report.text(f"Skipped: {problem}")
        return
    metric = networks.NETWORKS[case.network].metric
    labels = [f"{library}: {method}" for library, methods in case.methods.items() for method in methods]
    wanted = [(FLOAT, NONE), *((name, label) for label in labels)]
    planned = [[Job(case.network, *pair, seed, options.quick) for seed in seeds] for pair in wanted]
    outcomes = jobs.run_all(list(chain(*planned)), ["--data", options.data], options)
    reference, *rows = (Row(each[0].method, [outcomes[job] for job in each]) for each in planned)
    rounded = {row.label.partition(":")[0]: row for row in reversed(rows)}
    shown = [cells(row, reference, rounded[row.label.partition(":")[0]], metric) for row in rows]
    report.table(f"{case.network}: {case.title}", columns(metric), [cells_of_float(reference, metric), *shown])
    for row in rows:
        if row.problem:
            report.text(f"{row.label}: {row.problem}")


def _run(job: Job, options: Namespace) -> Outcome:
    """For the child: quantize and judge."""
    network = networks.load(job.network, options.data, quick=job.quick, seed=job.seed)
    return jobs.measured(lambda: _model(job, network), lambda model: networks.judge(model, network))


def _model(job: Job, network: networks.Network) -> nn.Module:
    if job.precision == FLOAT:
        return network.model
    case = CASES[job.precision]
    library, _, method = job.method.partition(": ")
    if library != OWN:
        return peers_recovery.quantized(library, method, network.model, network.calibration, case.setting)
    methods = [] if method == NONE else [method]
    return subbyte.prepare(network.model, case.config, network.calibration, recover=methods, seed=job.seed)


if __name__ == "__main__":
    main()
