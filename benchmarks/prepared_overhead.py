"""Eval forward of the prepared network against the float one: at most 1.5 times its time.

The converted model, which unpacks its weights at every forward, is timed for information.
"""

import torch
from timing import interleaved

import networks
import subbyte
from report import Report, parser

LIMIT = 1.5
CONFIGS = ("w8a8", "w4a4")
BATCHES = (1, 32, 128)
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def main() -> None:
    arguments = parser(__doc__)
    networks.add_arguments(arguments, networks.IMAGE_NETWORKS)
    options = arguments.parse_args()
    network = networks.load(options.network, options.data, quick=options.quick)
    report = Report(
        f"prepared_overhead_{network.name}", f"Eval forward of prepared {network.name}", quick=options.quick
    )
    prepared = {
        config: subbyte.prepare(network.model, config, network.calibration, first_last="int8") for config in CONFIGS
    }
    models = {"float": network.model, **prepared}
    models |= {f"{config} converted": subbyte.convert(model) for config, model in prepared.items()}
    images = torch.cat([x for x, _ in network.test])
    rows, worst = [], dict.fromkeys(BATCHES, 0.0)
    for layout, memory_format in LAYOUTS.items():
        for batch in BATCHES:
            x = images[:batch].contiguous(memory_format=memory_format)
            rounds = _rounds(batch, quick=options.quick)
            with torch.no_grad():
                times = interleaved({name: lambda m=m, x=x: m(x) for name, m in models.items()}, rounds)
            ratios = {name: times[name].median / times["float"].median for name in models}
            worst[batch] = max(worst[batch], *(ratios[config] for config in CONFIGS))
            for name in models:
                rows.append([f"{layout}, batch {batch}, {name}", times[name].milliseconds(), f"{ratios[name]:.2f}"])
    report.text(
        "Models are called in turn in one run under no_grad; input only is channels_last. First and last layer int8."
    )
    report.table("Forward", ["input and model", "ms: median (quartiles)", "over float"], rows)
    for batch, ratio in worst.items():
        wanted = f"batch {batch}: prepared forward at most {LIMIT} times float"
        report.goal(wanted, f"{ratio:.2f} times at the worst", met=ratio <= LIMIT)
    report.save()


def _rounds(batch: int, *, quick: bool) -> int:
    return {1: 20, 32: 7, 128: 5}[batch] if quick else {1: 200, 32: 60, 128: 30}[batch]


if __name__ == "__main__":
    main()
