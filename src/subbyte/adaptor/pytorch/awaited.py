"""Folded BatchNorms that have yet to be reached in a forward.

An op that holds a BatchNorm has applied it when it returns. On a path that does not go on to that BatchNorm its
value would be wrong, so such a path is refused.
"""

import threading

import torch

from subbyte.adaptor.pytorch.phase import Run
from subbyte.errors import UnseenOpError


class _Awaited(threading.local):
    """Each thread runs forwards of its own."""

    def __init__(self) -> None:
        self.of: dict[int, set[str]] = {}


_awaited = _Awaited()


def begin(run: Run) -> None:
    """Forget what an earlier forward left: one that raised, or a part of the model that was called by itself."""
    _awaited.of[id(run)] = set()


def expect(run: Run, op: str) -> None:
    """Note that an op has applied its BatchNorm.

    Raises:
        UnseenOpError: it had done so before, and nothing has reached that BatchNorm since.
    """
    if torch.compiler.is_compiling() or run.phase == "bypass":
        return
    waiting = _awaited.of.setdefault(id(run), set())
    if op in waiting:
        raise _unseen(op)
    waiting.add(op)


def reach(run: Run, op: str) -> None:
    """Note that the BatchNorm of an op is reached; a part of a model that is called by itself may begin with it."""
    if not torch.compiler.is_compiling():
        _awaited.of.setdefault(id(run), set()).discard(op)


def end(run: Run) -> None:
    """The whole model has run.

    Raises:
        UnseenOpError: a BatchNorm was not reached after its op.
    """
    waiting = _awaited.of.pop(id(run), None)
    if waiting:
        raise _unseen(min(waiting))


def _unseen(op: str) -> UnseenOpError:
    return UnseenOpError(
        f"op {op!r} was not followed by the BatchNorm that is folded into it, as in every calibration batch; "
        "add a batch that takes this path to the calibration data"
    )
