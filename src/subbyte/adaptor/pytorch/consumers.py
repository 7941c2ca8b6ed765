"""Which ops and functions read the output of each op, seen through functions that pass codes on.

The configuration decides by the consumers of `add`, `mul` and `cat` whether these are quantized by default.
"""

from collections.abc import Set
from dataclasses import replace
from typing import Any

from subbyte.adaptor.pytorch.trace import Trace

CALLER = "the model's caller"

REARRANGING = (
    "view reshape flatten unflatten transpose permute movedim moveaxis swapaxes swapdims t contiguous squeeze "
    "unsqueeze expand expand_as repeat repeat_interleave tile chunk split split_with_sizes tensor_split unbind "
    "select narrow __getitem__ index_select gather roll flip view_as reshape_as broadcast_to unfold "
    "pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle"
)
"""Functions that move elements and change none."""

# Each element of their output is one of the input's, a bound, or zero.
_SELECTING = (
    "relu relu6 hardtanh clamp clip clamp_min clamp_max max_pool1d max_pool2d max_pool3d boolean_dispatch "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d amax amin pad "
    "dropout dropout1d dropout2d dropout3d feature_dropout alpha_dropout clone detach alias to float "
    "double half bfloat16 type type_as cpu cuda __get__"
)
_AVERAGING = (
    "mean avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "interpolate upsample"
)
_PASSING = frozenset(f"{REARRANGING} {_SELECTING} {_AVERAGING}".split())


def passes_codes(function: Any) -> bool:
    """Return whether a torch function hands on the codes of its input, or averages them."""
    name = function.__name__
    name = name if name.endswith("__") else name.rstrip("_")
    return name in _PASSING


def mark_consumers(trace: Trace, shown: Set[str]) -> None:
    """Note for each op of a recorded forward what reads its output.

    Args:
        trace: The recording of one forward. Its ops are changed.
        shown: The nodes that made what the model returns.
    """
    consumers = {key: {CALLER} if key in shown else set() for key in trace.nodes}
    for key, node in reversed(trace.nodes.items()):  # consumers run after their sources
        for source in node.sources:
            consumers[source] |= consumers[key] if node.passes_codes else {node.label}
    ops = trace.graph.ops
    for key, node in trace.nodes.items():
        if node.label in ops:
            ops[node.label] = replace(ops[node.label], consumers=ops[node.label].consumers | consumers[key])
