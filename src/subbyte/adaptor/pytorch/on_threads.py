"""Independent work on several weights, each on one thread.

PyTorch splits every operation among its threads, which wait for each other at its end. Quantizing a weight takes dozens
of operations. If another process holds a core, each of these waits takes a whole time slice, milliseconds instead of
microseconds. Here threads meet once, after all weights.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(
    work: Callable[[Item], Result], items: Sequence[Item], weight_of: Callable[[Item], Tensor]
) -> list[Result]:
    """Return `work(item)` of each item, in order; on a CPU one thread works on one item, the largest weights first.

    Args:
        work: Independent of the other items.
        items: What to work on.
        weight_of: Returns the weight of an item, which tells device and size.

    Raises:
        Exception: The first, in the order of items, that `work` raised.
    """
    threads = min(torch.get_num_threads(), len(items))
    if threads < 2 or any(weight_of(item).device.type != "cpu" for item in items):
        return [work(item) for item in items]
    before, inference, gradients = torch.get_num_threads(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def run(item: Item) -> Result:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):  # each thread has modes of its own
            return work(item)

    try:
        # In a new thread, `set_num_threads` limits the operations of this thread alone.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            largest_first = sorted(range(len(items)), key=lambda index: -weight_of(items[index]).numel())
            futures = {index: pool.submit(run, items[index]) for index in largest_first}
            return [futures[index].result() for index in range(len(items))]
    finally:
        torch.set_num_threads(before)  # threads that start later take it from the last call
