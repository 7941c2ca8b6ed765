"""A step of training the network at w4a4, first and last layer int8, against a step of the float network.

Beside it: the same with the residual adds left float, as the peers leave them, and the same with the range of the
images as calibration found it; LSQ written by hand in eager PyTorch; and Brevitas, where it is installed.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from contenders import Contenders, in_fresh_process
from peers_recovery.setting import Setting
from peers_training import naive_lsq
from resident import forget_peak, peak, resident
from timing import in_turns
from torch import Tensor, nn

import networks
import subbyte
from report import Report, parser

BATCH = 128
SECONDS, QUICK_SECONDS = 150.0, 5.0
TURN = 2.0  # seconds
PROCESSES, QUICK_PROCESSES = 3, 1
TIME_LIMIT, MEMORY_LIMIT = 1.25, 1.5
OURS, PRODUCTS = "subbyte lsq", "subbyte lsq, adds float"
PEERS = Setting(4, activation_bits=4, wide=("conv1", "linear"))


@dataclass(frozen=True)
class Training:
    """What every contender trains.

    Args:
        network: Name of the network.
        data: Folder of its weights and images.
        threads: Number of threads of PyTorch.
    """

    network: str
    data: Path
    threads: int

    def load(self) -> tuple[networks.Network, Tensor, Tensor]:
        """Return the network, and one batch of images with their labels."""
        torch.set_num_threads(self.threads)
        network = networks.load(self.network, self.data, quick=True)
        inputs, labels = (torch.cat(parts)[:BATCH].contiguous() for parts in zip(*network.test, strict=True))
        return network, inputs, labels


def main() -> None:
    arguments = parser(__doc__)
    networks.add_arguments(arguments, networks.IMAGE_NETWORKS)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch (%(default)s)")
    options = arguments.parse_args()
    training = Training(options.network, options.data, options.threads)
    network, *_ = training.load()
    names = list(contenders(network))
    report = Report(f"training_step_{network.name}", f"A training step of {network.name}", quick=options.quick)
    turns = {name: partial(_turn, name, training) for name in names}
    with Contenders(names) as processes:
        times = processes.take_turns(turns, QUICK_SECONDS if options.quick else SECONDS)
    repeated = range(QUICK_PROCESSES if options.quick else PROCESSES)
    memory = {name: median(in_fresh_process(_memory, name, training) for _ in repeated) for name in names}
    rows = []
    for name in names:
        slower = times[name].median / times["float"].median
        more = memory[name] / memory["float"]
        rows.append([name, times[name].milliseconds(), f"{slower:.2f}", f"{memory[name] / 2**20:.0f}", f"{more:.2f}"])
    report.text(
        f"Forward, backward and an SGD step of {BATCH} images; {options.threads} threads. Each contender runs in a "
        f"process of its own; the processes take turns of {TURN:.0f} s ({len(times[OURS].seconds)} steps of ours). "
        "Memory is the peak of resident memory in three steps beyond that before the first step: the median of "
        f"{len(repeated)} fresh processes."
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


def _turn(name: str, training: Training) -> dict[str, list[float]]:
    """Train for one turn, in the process of a contender; return the seconds of each step."""
    return {name: list(in_turns({name: _trained(name, training)}, TURN)[name].seconds)}


@cache
def _trained(name: str, training: Training) -> Callable[[], None]:
    """Make a contender once in its process; return its step."""
    network, inputs, labels = training.load()
    return _step(contenders(network)[name](), inputs, labels)


def _memory(name: str, training: Training) -> int:
    """Return the bytes that training takes at its peak beyond what is held before."""
    network, inputs, labels = training.load()
    model = contenders(network)[name]()
    with torch.no_grad():
        model(inputs[:1])  # what is loaded once
    before = resident()
    forget_peak()
    step = _step(model, inputs, labels)
    for _ in range(3):
        step()
    return peak() - before


def _step(model: nn.Module, inputs: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return a function that trains the model for one step."""
    model.train()
    model(inputs)  # Brevitas makes parameters of its statistics in the first forwards
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
