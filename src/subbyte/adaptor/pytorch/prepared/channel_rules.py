"""Which channels the result of a torch function holds, given those of its arguments.

Labels are whole numbers in the shape of a value: each element carries the number of the channel that it grows in
proportion with, or NONE. A rule gives the labels of a function's result, or None where the result does not grow in
proportion: then nothing may scale these channels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from subbyte.adaptor.pytorch.consumers import REARRANGING

NONE = -1


@dataclass
class Notes:
    """What is learned of channels beside the labels.

    Args:
        bent: channels that went through a function which is no linear map of them.
        ties: pairs of labels that were added to each other, element by element.
        bundles: rows of channels that were mixed with the same coefficients, as those of an attention head.
        blocked: channels that nothing may scale.
    """

    bent: list[Tensor] = field(default_factory=list)
    ties: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    bundles: list[Tensor] = field(default_factory=list)
    blocked: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class FunctionCall:
    """One call of a torch function.

    Args:
        function, args, kwargs, output: as they were.
        labels_of: the labels of a tensor; None where it has none.
        notes: added to.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    labels_of: Callable[[Any], Tensor | None]
    notes: Notes

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """By position or by name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def labels(self, place: int, name: str = "input") -> Tensor | None:
        """Of one argument."""
        return self.labels_of(self.argument(place, name))


Labels = Any  # Tensor, a tuple or list of them, or None
Rule = Callable[[FunctionCall], Labels]


def _rearranged(call: FunctionCall) -> Labels:
    """The function itself, of labels: it moves elements and changes none."""

    def label(leaf: Any) -> Any:
        labels = call.labels_of(leaf)
        return leaf if labels is None else labels

    args, kwargs = tree_map(label, (call.args, call.kwargs))
    return call.function(*args, **kwargs)


def _joined(call: FunctionCall) -> Labels:
    """As `_rearranged`, of several tensors, some of which may have no labels."""

    def label(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        labels = call.labels_of(leaf)
        return torch.full_like(leaf, NONE, dtype=torch.int32) if labels is None else labels

    args, kwargs = tree_map(label, (call.args, call.kwargs))
    return call.function(*args, **kwargs)


def _kept(call: FunctionCall) -> Labels:
    """Each element alone, times a constant that is the same for all."""
    labels = call.labels(0)
    others = (*call.args[1:], *(value for key, value in call.kwargs.items() if key != "input"))
    if labels is None or any(call.labels_of(other) is not None for other in others):
        return None
    return labels.broadcast_to(call.output.shape)


def _bent(call: FunctionCall) -> Labels:
    """Each element alone, by a function f with f(s x) = s f(x) for positive s."""
    labels = _kept(call)
    if labels is not None:
        call.notes.bent.append(labels)
    return labels


def _multiplied(call: FunctionCall) -> Labels:
    first, second = call.argument(0, "input"), call.argument(1, "other")
    labels, others = call.labels_of(first), call.labels_of(second)
    if labels is not None and others is not None:
        return None
    factor = second if labels is not None else first
    found = others if labels is None else labels
    assert found is not None
    if isinstance(factor, Tensor) and factor.numel() > 1:
        call.notes.bent.append(found)
    return found.broadcast_to(call.output.shape)


def _divided(call: FunctionCall) -> Labels:
    return _multiplied(call) if call.labels(1, "other") is None else None


def _added(call: FunctionCall) -> Labels:
    labels, others = call.labels(0), call.labels(1, "other")
    if labels is None or others is None:
        return None
    shape = call.output.shape
    labels, others = labels.broadcast_to(shape), others.broadcast_to(shape)
    first, second = torch.broadcast_tensors(compact(labels), compact(others))
    if not torch.equal(first, second):
        if bool(((first == NONE) | (second == NONE)).any()):
            return None
        call.notes.ties.append((first, second))
    return labels


def _matrix_product(call: FunctionCall) -> Labels:
    """Of labelled matrices with unlabelled ones: sums run over elements of one channel."""
    labels, others = call.labels(0), call.labels(1, "other" if "other" in call.kwargs else "mat2")
    if labels is not None and others is not None:
        return None
    if others is not None:
        return _mixed(call, others)
    if labels is None or labels.ndim < 2:
        return None
    row = _same_along(labels, (-1,))
    return None if row is None else row.broadcast_to(call.output.shape)


def _mixed(call: FunctionCall, labels: Tensor) -> Labels:
    """`a @ b` for labels of b [..., summed, columns]."""
    row = _same_along(labels, (-2,)) if labels.ndim > 1 else None
    if row is None:
        return None
    call.notes.bundles.append(row.flatten(0, -2))
    return row.broadcast_to(call.output.shape)


def _attention(call: FunctionCall) -> Labels:
    labels = call.labels(2, "value")
    scores = (call.labels(0, "query"), call.labels(1, "key"))
    call.notes.blocked += [each for each in scores if each is not None]
    if labels is None or call.labels(3, "attn_mask") is not None:
        return None
    heads = call.output.shape[-3] if call.output.ndim > 2 else 1
    if call.kwargs.get("enable_gqa") and labels.shape[-3] != heads:
        labels = labels.repeat_interleave(heads // labels.shape[-3], -3)
    return _mixed(call, labels)


def _pooled(call: FunctionCall) -> Labels:
    """Over the axes behind the channels."""
    labels = call.labels(0)
    digits = [int(letter) for letter in call.function.__name__ if letter.isdigit()]
    spatial = digits[0] if digits else call.output.ndim - 2
    row = None if labels is None else _same_along(labels, tuple(range(-spatial, 0)))
    if row is None or not isinstance(call.output, Tensor):
        return None
    call.notes.bent.append(row)
    return row.broadcast_to(call.output.shape)


def _reduced(call: FunctionCall) -> Labels:
    labels, axes = call.labels(0), call.argument(1, "dim")
    if labels is None or axes is None or not isinstance(call.output, Tensor):
        return None
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    row = _same_along(labels, axes)
    if row is None:
        return None
    call.notes.bent.append(row)
    return row.reshape(call.output.shape)


def _padded(call: FunctionCall) -> Labels:
    """By zeros, which grow with any channel, or by elements beside."""
    labels, ends = call.labels(0), call.argument(1, "pad")
    if labels is None or call.argument(3, "value") or any(end < 0 for end in ends):
        return None
    padded = compact(labels)
    for axis in range(len(ends) // 2):
        before, after, length = ends[2 * axis], ends[2 * axis + 1], labels.shape[-1 - axis]
        index = torch.arange(-before, length + after, device=labels.device).clamp(0, padded.shape[-1 - axis] - 1)
        padded = padded.index_select(labels.ndim - 1 - axis, index)
    spatial = _same_along(labels, tuple(range(-(len(ends) // 2), 0)))
    if call.argument(2, "mode", "constant") != "constant" and spatial is None:
        return None
    return padded.broadcast_to(call.output.shape)


def compact(labels: Tensor, keep: int = 0) -> Tensor:
    """Labels with length 1 along each axis that they were expanded along.

    Args:
        labels: in the shape of a value, which may be large.
        keep: how many of the last axes stay as they are.
    """
    for axis in range(labels.ndim - keep):
        if labels.stride(axis) == 0:
            labels = labels.narrow(axis, 0, min(1, labels.shape[axis]))
    return labels


def _same_along(labels: Tensor, axes: tuple[int, ...]) -> Tensor | None:
    """The labels with these axes of length 1, where they do not differ along them."""
    row = labels
    for axis in axes:
        row = row.narrow(axis, 0, 1)
    return row if labels.numel() and bool((compact(labels) == compact(row)).all()) else None


def _names(text: str, rule: Rule) -> Iterator[tuple[str, Rule]]:
    for name in text.split():
        yield name, rule
        yield f"{name}_", rule


RULES: dict[str, Rule] = {
    **dict(_names(REARRANGING, _rearranged)),
    **dict(_names("cat concat concatenate stack", _joined)),
    **dict(
        _names(
            "clone detach alias to float double half bfloat16 type type_as neg negative __neg__ positive dropout "
            "dropout1d dropout2d dropout3d feature_dropout alpha_dropout requires_grad",
            _kept,
        )
    ),
    **dict(_names("relu leaky_relu prelu rrelu abs", _bent)),
    **dict(_names("mul multiply __mul__ __rmul__ __imul__", _multiplied)),
    **dict(_names("div divide true_divide __truediv__ __div__ __itruediv__", _divided)),
    **dict(_names("add __add__ __radd__ __iadd__ sub subtract __sub__ __isub__", _added)),
    **dict(_names("matmul bmm mm __matmul__", _matrix_product)),
    "scaled_dot_product_attention": _attention,
    **dict(
        _names(
            "max_pool1d max_pool2d max_pool3d boolean_dispatch avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
            "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
            "interpolate upsample",
            _pooled,
        )
    ),
    **dict(_names("mean sum amax amin", _reduced)),
    "pad": _padded,
}

# What reads shapes and types alone.
SHAPE_ONLY = frozenset(
    {"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"}
    | {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"}
)
# What gives a value to Python.
LEAKS = frozenset(
    {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"}
    | {"equal", "allclose", "is_nonzero"}
)
