"""A step of training the network at w4a4, first and last layer int8, against a step of the float network.

Beside it: the same with the residual adds left float, as the peers leave them, and the same with the range of the
images as calibration found it; LSQ written by hand in eager PyTorch; and Brevitas, where it is installed.
"""

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from importlib.util import find_spec
from statistics import median

import torch
import torch.nn.functional as F
from peers_recovery.setting import Setting
from peers_training import naive_lsq
from resident import forget_peak, peak, resident
from timing import interleaved
from torch import Tensor, nn

import networks
import subbyte
from report import Report, parser

BATCH = 128
ROUNDS, QUICK_ROUNDS = 60, 5
PROCESSES, QUICK_PROCESSES = 3, 1
TIME_LIMIT, MEMORY_LIMIT = 1.25, 1.5
OURS, PRODUCTS = "subbyte lsq", "subbyte lsq, adds float"
PEERS = Setting(4, activation_bits=4, wide=("conv1", "linear"))


def main() -> None:
    arguments = parser(__doc__)
    networks.add_arguments(arguments, networks.IMAGE_NETWORKS)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch (%(default)s)")
    arguments.add_argument("--memory-of", help="print the peak memory of this contender alone")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    network = networks.load(options.network, options.data, quick=True)
    inputs, labels = _batch(network)
    makers = contenders(network)
    if options.memory_of:
        print(_memory(makers[options.memory_of](), inputs, labels))
        return
    report = Report(f"training_step_{network.name}", f"A training step of {network.name}", quick=options.quick)
    times = interleaved(
        {name: _step(make(), inputs, labels) for name, make in makers.items()},
        QUICK_ROUNDS if options.quick else ROUNDS,
    )
    processes = QUICK_PROCESSES if options.quick else PROCESSES
    memory = {name: median(_measured_apart(name, sys.argv[1:]) for _ in range(processes)) for name in makers}
    rows = []
    for name in makers:
        slower = times[name].median / times["float"].median
        more = memory[name] / memory["float"]
        rows.append([name, times[name].milliseconds(), f"{slower:.2f}", f"{memory[name] / 2**20:.0f}", f"{more:.2f}"])
    report.text(
        f"Forward, backward and an SGD step of {BATCH} images, contenders in turn in one run of "
        f"{len(times[OURS].seconds)} rounds. Memory is the peak of what is resident in three steps "
        f"beyond what was before the first, each in a process of its own: the median of {processes}."
    )
    report.table("Training step", ["", "ms: median (quartiles)", "over float", "peak MiB", "over float"], rows)
    slower = times[OURS].median / times["float"].median
    report.goal(f"at most {TIME_LIMIT} times the float step", f"{slower:.2f} times", met=slower <= TIME_LIMIT)
    more = memory[OURS] / memory["float"]
    report.goal(f"at most {MEMORY_LIMIT} times its peak memory", f"{more:.2f} times", met=more <= MEMORY_LIMIT)
    report.save()


def contenders(network: networks.Network) -> dict[str, Callable[[], nn.Module]]:
    """What is trained, each made when it is asked for."""
    whole = {"precision": "w4a4", "first_last": "int8"}
    products = whole | {"op_type_dict": {"add": "fp32"}}
    rules = {"ops": {"conv1": {"activation": "clipped"}}}
    makers: dict[str, Callable[[], nn.Module]] = {
        "float": lambda: deepcopy(network.model),
        OURS: lambda: subbyte.prepare_qat(network.model, whole, network.calibration),
        PRODUCTS: lambda: subbyte.prepare_qat(network.model, products, network.calibration),
        f"{OURS}, images' range kept": lambda: subbyte.prepare_qat(
            network.model, whole, network.calibration, training=rules
        ),
        "eager lsq": lambda: naive_lsq.to_train(network.model, PEERS),
    }
    if find_spec("brevitas"):
        from peers_training import of_brevitas

        makers["Brevitas"] = lambda: of_brevitas.to_train(network.model, PEERS, network.calibration[0])
    return makers


def _batch(network: networks.Network) -> tuple[Tensor, Tensor]:
    inputs, labels = (torch.cat(parts)[:BATCH].contiguous() for parts in zip(*network.test, strict=True))
    return inputs, labels


def _step(model: nn.Module, inputs: Tensor, labels: Tensor) -> Callable[[], None]:
    """A step of training, as a function."""
    model.train()
    model(inputs)  # Brevitas makes parameters of its statistics in the first forwards
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def _memory(model: nn.Module, inputs: Tensor, labels: Tensor) -> int:
    """Bytes that training takes at its peak beyond what is held before."""
    with torch.no_grad():
        model(inputs[:1])  # what is loaded once
    before = resident()
    forget_peak()
    step = _step(model, inputs, labels)
    for _ in range(3):
        step()
    return peak() - before


def _measured_apart(name: str, arguments: list[str]) -> int:
    command = [sys.executable, __file__, *arguments, "--memory-of", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
