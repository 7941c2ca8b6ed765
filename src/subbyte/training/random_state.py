"""The state of everything random, so that a training that is taken up draws what it would have drawn."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """That of torch, on all devices, of numpy and of Python, as plain data."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on from what `random_state` gave."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """All that is random begins with a seed, and afterwards goes on as it would have before."""
    before = random_state()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        set_random_state(before)
