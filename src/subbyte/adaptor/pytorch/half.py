"""Computing in a float type of 16 bits: what goes in is cast to it, what comes out is cast back."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from subbyte.numerics import without_autocast


def in_half(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    half: torch.dtype,
    float_type: torch.dtype = torch.float32,
) -> Any:
    """The result of a function of float tensors cast to `half`, cast back to their type, or to the dtype asked for.

    A function that writes into its first argument does so still. Casting back loses nothing: what is cast to the same
    type again has the same values.

    Args:
        function: that computes in the type of its inputs.
        args, kwargs: of any float types; what is no float tensor is passed on as it is.
        half: fp16 or bf16.
        float_type: of the result where neither is given.
    """
    leaves = tree_leaves((args, kwargs))
    floats = [leaf for leaf in leaves if _is_float(leaf)]
    asked = [leaf for leaf in leaves if isinstance(leaf, torch.dtype)]
    back = asked[0] if asked else reduce(torch.promote_types, [x.dtype for x in floats]) if floats else float_type

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return half
        return leaf.to(half) if _is_float(leaf) else leaf

    given, named = tree_map(cast, args), tree_map(cast, kwargs)
    with without_autocast(floats[0].device if floats else torch.device("cpu")):
        result = function(*given, **named)
    first, own = (args[0], given[0]) if args else (kwargs.get("input"), named.get("input"))
    if isinstance(first, Tensor) and result is own and result is not first:
        return first.copy_(result)
    return tree_map(lambda leaf: leaf.to(back) if _is_float(leaf) else leaf, result)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
