"""Where in a module's code a call stands: an identity that control flow does not shift.

Two calls are the same when every frame between them and the module whose forward runs stands at the same
place. A place is the n-th expression of its function: comments, line breaks and new names do not move it, and
neither do edits elsewhere. How many expressions there are belongs to it, so that a function that was rewritten is
not taken for the one that was recorded.
"""

import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import torch

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)
_MODULE_CALL = f"{_TORCH}/nn/modules/module.py"
_FUNCTIONAL = f"{_TORCH}/nn/functional.py"
# Between a call and the code that wrote it: dispatch, not places of the user's.
_DISPATCH = (
    f"{_TORCH}/overrides.py",
    f"{_TORCH}/_tensor.py",
    f"{_TORCH}/utils/_contextlib.py",
    f"{_TORCH}/_dynamo/eval_frame.py",
)


def call_site(function_name: str = "") -> str:
    """The place of the call being made, as `Block.forward:12/40` or `Block.forward:12/40>helper:2/7`.

    Args:
        function_name: of a `torch.nn.functional` function: its own frame is left out, so that the place does
            not hang on PyTorch's version.
    """
    frame = _calling_frame()
    places: list[str] = []
    while frame is not None:
        code = frame.f_code
        role = _role(code)
        if role == "forward":
            break
        if role == "place" and (places or code.co_name != function_name or code.co_filename != _FUNCTIONAL):
            places.append(_place_in(code, frame.f_lasti))
        frame = frame.f_back
    if frame is None:
        return ""  # no module's code: where the model itself is called is nobody's place
    return places[0] if len(places) == 1 else ">".join(reversed(places))


def unseen() -> str:
    """Where the call being made is written and what to do, for a call that no calibration batch made."""
    if torch.compiler.is_compiling():
        return (
            "is seen by torch.compile where no calibration batch went; compile around it, or run without torch.compile"
        )
    frame = _calling_frame()
    if frame is None:
        place = "outside a module"
    elif frame.f_code.co_filename.startswith("<eval_with_key>"):  # what torch.compile calls its graphs
        return "is in a graph that torch.compile broke; compile with fullgraph=True, or around this module"
    else:
        place = f"line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
    if _is_direct():
        return f"({place}) goes past the module, which is quantized: write module(x) there, not module.forward(x)"
    return f"({place}) was reached by no calibration batch; add a batch that takes this path to the calibration data"


def rewritten(sites: Iterable[str], classes: Iterable[type]) -> str:
    """The first function of some classes or their files that is not the one that call sites were recorded in.

    Returns:
        its name; empty where all functions that can be found are as they were.
    """
    lengths: dict[str, set[str]] = {}
    for code in _codes_of(set(classes)):
        lengths.setdefault(code.co_qualname, set()).add(str(len(_expressions(code))))
    for site in sites:
        for place in site.split(">") if site else ():
            name, _, position = place.rpartition(":")
            if name in lengths and position.partition("/")[2] not in lengths[name]:
                return name
    return ""


def _calling_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _role(frame.f_code) != "place":
        frame = frame.f_back
    return frame


def _is_direct() -> bool:
    """Whether the innermost forward of a quantized module was called as such, and not by calling the module."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_our_forward(frame.f_code):
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return caller is not None and _role(caller.f_code) == "place"


def _is_our_forward(code: CodeType) -> bool:
    return code.co_name == "forward" and code.co_filename.startswith(_OURS)


# Every call of every op asks for these. A code object is known by its address, as hashing one reads all of it; it is
# kept, so that no other gets that address.
_roles: dict[int, tuple[CodeType, str]] = {}
_places: dict[tuple[int, int], tuple[CodeType, str]] = {}


def _role(code: CodeType) -> str:
    """`forward`: where a module's begins; `dispatch`: ours and PyTorch's, no place of the user's; else `place`."""
    known = _roles.get(id(code))
    if known is None:
        known = _roles[id(code)] = (code, _role_of(code))
    return known[1]


def _role_of(code: CodeType) -> str:
    file = code.co_filename
    if file == _MODULE_CALL or _is_our_forward(code):
        return "forward"  # ours is reached past the module call where someone calls model.forward(x)
    return "dispatch" if file.startswith(_OURS) or file in _DISPATCH else "place"


def _place_in(code: CodeType, instruction: int) -> str:
    known = _places.get((id(code), instruction))
    if known is None:
        known = _places[id(code), instruction] = (code, _place(code, instruction))
    return known[1]


Position = tuple[int, ...]


def _place(code: CodeType, instruction: int) -> str:
    here = _position(next(islice(code.co_positions(), instruction // 2, None)))
    expressions = _expressions(code)
    return f"{code.co_qualname}:{expressions.index(here) + 1}/{len(expressions)}"


@cache
def _expressions(code: CodeType) -> list[Position]:
    """Where the expressions of a function stand, in order."""
    return sorted({_position(position) for position in code.co_positions()})


def _position(position: Iterable[int | None]) -> Position:
    """Start, then end, so that breaking a line changes no order."""
    line, end_line, column, end_column = (number or 0 for number in position)
    return line, column, end_line, end_column


def _codes_of(classes: Iterable[type]) -> Iterator[CodeType]:
    bases = {base for cls in classes for base in cls.__mro__}
    files = {sys.modules[name] for name in {base.__module__ for base in bases} & set(sys.modules)}
    for value in [value for holder in (*bases, *files) for value in vars(holder).values()]:
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            yield from _with_inner(inspect.unwrap(function).__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
