"""One search of one library, for `tuning_peers.py`, which reads the outcome from a file."""

import argparse
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import networks
from peers_tuning.problem import measured, problem_of


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("library", choices=["of_neural_compressor", "of_subbyte"])
    arguments.add_argument("strategy")
    arguments.add_argument("objective")
    arguments.add_argument("--trials", type=int, required=True)
    arguments.add_argument("--outcome", type=Path, required=True, help="the file that is written")
    networks.add_arguments(arguments, networks.IMAGE_NETWORKS)
    options = arguments.parse_args()
    search = import_module(f"peers_tuning.{options.library}").SEARCHES[options.strategy]
    network = networks.load(options.network, options.data, quick=True)
    outcome = measured(search, problem_of(network, options.objective, options.trials))
    options.outcome.write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
