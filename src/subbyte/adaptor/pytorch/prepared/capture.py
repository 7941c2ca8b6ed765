"""The calls that one module of a model gets, batch by batch."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.inputs import quantized
from subbyte.adaptor.pytorch.quantized_module import QuantizedModule
from subbyte.adaptor.pytorch.quantizer import InputQuantizer
from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.adaptor.pytorch.unchanged import unchanged
from subbyte.errors import RecoveryError


@dataclass(frozen=True)
class Call:
    """What a module was called with, and what it gave; tensors are the call's own.

    Args:
        args, kwargs: as given.
        output: as returned.
        quantizer: of the input at that place; None where the input stays float.
        place: among the calls that the module gets in one forward.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    quantizer: InputQuantizer | None = None
    place: tuple[int, ...] = ()

    def copied(self) -> "Call":
        """The same with tensors of its own: a module may write into what it is given."""
        args, kwargs = tree_map(_own, (self.args, dict(self.kwargs)))
        return Call(args, kwargs, self.output, place=self.place)

    @property
    def input(self) -> Tensor:
        """The first tensor that it was given."""
        return tensors_in((self.args, self.kwargs))[0]

    @property
    def quantized_input(self) -> Tensor:
        """The values of `input` that an op computes with."""
        return quantized(self.input, self.quantizer)

    @property
    def result(self) -> Tensor:
        """The first tensor that it gave."""
        return tensors_in(self.output)[0]


SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.device)  # what no forward can write into


class _Done(BaseException):
    """The module has been called as often as a forward calls it: the rest of that forward tells nothing.

    No Exception, so that no code of the model takes it for an error of its own.
    """


def calls_of(model: nn.Module, module: nn.Module, batch: Batch, most: int | None = None) -> list[Call]:
    """Run a batch in eval() without gradients, and return the calls that a module of the model got.

    Args:
        model: left as it was.
        module: of it.
        batch: the inputs.
        most: stop the forward after so many calls.
    """
    with unchanged(model):
        return calls_during(lambda: batch.copied().run(model), module, most)


def calls_during(run: Callable[[], Any], module: nn.Module, most: int | None = None) -> list[Call]:
    """The calls that a module gets while something runs, which is stopped after `most` of them."""
    found: list[Call] = []
    given: list[tuple[Any, Any, InputQuantizer | None]] = []

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        given.append((tree_map(_own, args), tree_map(_own, kwargs), _quantizer(module)))

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        own_args, own_kwargs, quantizer = given.pop()
        found.append(Call(own_args, own_kwargs, tree_map(_own, output), quantizer, (len(found),)))
        if len(found) == most:
            raise _Done

    handles = [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave, with_kwargs=True),
    ]
    try:
        run()
    except _Done:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return found


def stream_calls(model: nn.Module, module: nn.Module, batches: list[Batch]) -> Iterator[list[Call]]:
    """`calls_of` each batch; from the second on a forward stops where the first one had called the module last."""
    most: int | None = None
    for batch in batches:
        calls = calls_of(model, module, batch, most)
        most = max(len(calls), most or 0) or None
        yield calls


def _quantizer(module: nn.Module) -> InputQuantizer | None:
    """What quantizes the first input of the call being made."""
    slots = module.input_quantizers.here() if isinstance(module, QuantizedModule) else ()
    return slots[0] if slots else None


def _own(leaf: Any) -> Any:
    """A forward may write into what it was given: into a tensor, or a cache."""
    if isinstance(leaf, Tensor):
        return leaf.detach().clone()
    return leaf if isinstance(leaf, SIMPLE) else copy.deepcopy(leaf)


def paired(name: str, calls: Iterable[Call], reference: Iterable[Call]) -> Iterator[tuple[Call, Call]]:
    """The calls that a module gets in the quantized and in the float model, each with its counterpart.

    Raises:
        RecoveryError: one of the models calls it more often.
    """
    for call, float_call in zip_longest(calls, reference):
        if call is None or float_call is None:
            more = "float" if call is None else "quantized"
            raise RecoveryError(
                f"{name!r} is called more often in the {more} model: how often hangs on values that quantization "
                "changes, so its outputs cannot be compared; leave it float "
                f"('op_name_dict': {{{name!r}: 'fp32'}}), or use methods that need no such calls (hqq, equalize)"
            )
        yield call, float_call
