"""What the benchmark of training on CIFAR-10 runs, and what it is to reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from training_precisions import FLOAT

BATCH, EPOCHS, QUICK_EPOCHS = 128, {"cuda": 200, "cpu": 10}, 2
SEEDS, QUICK_SEEDS = {"cuda": (0, 1, 2), "cpu": (0,)}, (0,)
MOMENTUM = 0.9
PLAIN, FOR_SIGNS = "resnet20", "resnet20 for signs"
TUNED = f"{FLOAT}, first half"
TEACHER = {"logits": 1.0, "temperature": 4.0}


@dataclass(frozen=True)
class Recipe:
    """How one precision is trained.

    Args:
        rate: of SGD at first; it falls along half a cosine.
        decay: of weights.
        begins: the precision of the first stage; that of the row where empty.
        stages: precisions after that, and from which share of the steps on.
        recover: methods that give a better start, as `prepare_qat` takes them.
        distill: terms of distillation from the float network; None is without.
    """

    rate: float
    decay: float = 1e-4
    begins: str = ""
    stages: tuple[tuple[float, str], ...] = ()
    recover: tuple[str, ...] = ()
    distill: Mapping[str, Any] | None = field(default_factory=lambda: TEACHER)


RECIPES = {
    TUNED: Recipe(0.02, distill=None),
    FLOAT: Recipe(0.01, distill=None),
    "4/4": Recipe(0.01, recover=("reconstruct",)),
    "3/3": Recipe(0.02, recover=("reconstruct",)),
    "2/2": Recipe(0.02, recover=("reconstruct",)),
    "1/32": Recipe(0.04, decay=0.0),
    "1/1": Recipe(0.1, decay=0.0),
}
QUICK_OPTIONS = {"reconstruct": {"steps": 10}}
NETWORKS = dict.fromkeys(RECIPES, PLAIN) | {"1/1": FOR_SIGNS}
DROPS = {  # points that may be lost, by device
    "cuda": {"4/4": 0.2, "3/3": 0.6, "2/2": 1.8, "1/32": 1.5, "1/1": 6.0},
    "cpu": {"4/4": 0.5, "2/2": 4.0},
}
CLOCK_MINUTES, CORES = 60.0, 2  # that the training of one precision may take on a CPU


def recover(recipe: Recipe, *, quick: bool) -> list[dict[str, Any]] | None:
    """What the library is asked for as a better start."""
    return [{name: QUICK_OPTIONS[name] if quick else {}} for name in recipe.recover] or None
