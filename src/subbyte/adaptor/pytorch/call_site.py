"""Where in a module's code a call stands: an identity that control flow does not shift.

Two calls are the same when every frame between them and the module whose forward runs stands at the same
place. Places are relative to the function that holds them, so edits elsewhere in a file do not move them.
"""

import sys
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

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

_places: dict[tuple[CodeType, int], str] = {}
_kinds: dict[CodeType, str] = {}


def call_site(function_name: str = "") -> str:
    """The place of the call being made, as `Block.forward:12:8` or `Block.forward:12:8>helper:2:4`.

    Args:
        function_name: of a `torch.nn.functional` function: its own frame is left out, so that the place does
            not hang on PyTorch's version.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _kind(frame.f_code) != "place":
        frame = frame.f_back
    places: list[str] = []
    while frame is not None and (kind := _kind(frame.f_code)) != "module call":
        code = frame.f_code
        own = not places and code.co_filename == _FUNCTIONAL and code.co_name == function_name
        if kind == "place" and not own:
            places.append(_place(code, frame.f_lasti))
        frame = frame.f_back
    if frame is None:
        return ""  # no module's code: where the model itself is called is nobody's place
    return ">".join(reversed(places))


def _kind(code: CodeType) -> str:
    """`module call`: nn.Module's own; `dispatch`: ours and PyTorch's, no place of the user's; else `place`."""
    kind = _kinds.get(code)
    if kind is None:
        file = code.co_filename
        dispatch = file.startswith(_OURS) or file in _DISPATCH
        kind = _kinds[code] = "module call" if file == _MODULE_CALL else "dispatch" if dispatch else "place"
    return kind


def _place(code: CodeType, instruction: int) -> str:
    key = (code, instruction)
    if key not in _places:
        line, _, column, _ = next(islice(code.co_positions(), instruction // 2, None))
        relative = (line or code.co_firstlineno) - code.co_firstlineno
        _places[key] = f"{code.co_qualname}:{relative}:{column or 0}"
    return _places[key]
