"""Which calibration method suits which width: weights and activations apart, on real networks.

One of the two is quantized to the width by each method, the other has 8 bits by min-max. The default of the shorthand
can be chosen by the table. What is judged is the prepared model, which computes what the converted model computes.
"""

from networks.images import TOP1
from rich.progress import track
from torch import nn

import networks
import subbyte
from networks import Judged, Network, judge
from report import Report, parser
from subbyte.cli.digits import load_digits, trained_network

WIDTHS = (8, 6, 5, 4, 3, 2)
METHODS = ("minmax", "mse", "percentile", "kl")
OPS = "Conv2d|Linear|matmul|scaled_dot_product_attention"  # that the shorthand speaks of
NETWORKS = ("resnet20", "resnet32", "stories260K", "minilm", "digits")
CALIBRATION_BATCHES, TEST_SAMPLES = 4, 1000
SEED = 0


def main() -> None:
    arguments = parser(__doc__)
    networks.add_data_argument(arguments)
    arguments.add_argument("--network", nargs="+", choices=NETWORKS, default=NETWORKS, help="which networks")
    options = arguments.parse_args()
    widths = (8, 4) if options.quick else WIDTHS
    part = options.quick or tuple(options.network) != NETWORKS
    report = Report("calibration_by_width", "Calibration method by width", quick=bool(part))
    for name in options.network:
        network = _digits() if name == "digits" else _few(networks.load(name, options.data, seed=SEED))
        reference = judge(network.model, network)
        jobs = [(tensor, bits, method) for tensor in ("activation", "weight") for bits in widths for method in METHODS]
        found = {job: judge(_prepared(network, *job), network) for job in track(jobs, name, transient=True)}
        report.text(f"Metric of {name}: {network.metric.name}; fp32 {reference.value:.{network.metric.digits}f}.")
        for tensor, other in (("activation", "weights"), ("weight", "activations")):
            rows = [
                [str(bits), *(_cell(found[tensor, bits, method], reference, network) for method in METHODS)]
                for bits in widths
            ]
            report.table(f"{name}: {tensor}s, {other} of 8 bits by minmax", ["bits", *METHODS], rows)
    report.save()


def _prepared(network: Network, tensor: str, bits: int, method: str) -> nn.Module:
    weight, activation = (8, bits) if tensor == "activation" else (bits, 8)
    others = {"weight": "activation", "activation": "weight"}
    methods = {tensor: {"algorithm": [method]}, others[tensor]: {"algorithm": ["minmax"]}}
    return subbyte.prepare(
        network.model, {"precision": f"w{weight}a{activation}", "op_type_dict": {OPS: methods}}, network.calibration
    )


def _cell(figures: Judged, reference: Judged, network: Network) -> str:
    change, digits = figures.change_from(reference), network.metric.digits
    return f"{figures.value:.{digits}f} ({change.value:+.{digits}f} ± {change.error:.{digits}f})"


def _few(network: Network) -> Network:
    """The first batches of a network's data."""
    samples, test = 0, []
    for inputs, targets in network.test:
        if samples < TEST_SAMPLES:
            test.append((inputs, targets))
        samples += len(targets)
    return Network(
        network.name, network.model, network.metric, network.data, network.calibration[:CALIBRATION_BATCHES], test
    )


def _digits() -> Network:
    train, test = load_digits(SEED)
    model = trained_network(train, SEED)
    return Network("digits", model, TOP1, "handwritten digits", [train.images[:256]], [(test.images, test.labels)])


if __name__ == "__main__":
    main()
