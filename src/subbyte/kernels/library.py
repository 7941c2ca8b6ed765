"""The native library: found beside this file's package, loaded once."""

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch  # noqa: F401  (the library looks for the libtorch that this loads)

from subbyte.errors import KernelError

FILE_NAME = "subbyte_kernels.so"


@dataclass(frozen=True)
class Library:
    """The native library, or why there is none.

    Args:
        handle: None where PyTorch implementations serve instead.
        reason: of that; empty where it is loaded.
    """

    handle: ctypes.CDLL | None
    reason: str = ""


@cache
def library() -> Library:
    """Load the library and register its operators.

    Raises:
        KernelError: it cannot work with this PyTorch, or SUBBYTE_ISA names what is not there.
    """
    if os.environ.get("SUBBYTE_ISA") == "torch":
        return Library(None, "SUBBYTE_ISA is 'torch'")
    path = next((path for folder in _folders() if (path := folder / FILE_NAME).exists()), None)
    if path is None:
        _check_nothing_asked()
        return Library(None, "this installation was built without a C++ compiler")
    handle = ctypes.CDLL(str(path))
    for function in (handle.subbyte_register, handle.subbyte_use_isa, handle.subbyte_isas):
        function.restype = ctypes.c_char_p
    handle.subbyte_advise_huge_pages.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    handle.subbyte_advise_huge_pages.restype = None
    problem = handle.subbyte_register()
    if problem is not None:
        raise KernelError(f"the native kernels cannot be used: {problem.decode()}; SUBBYTE_ISA=torch goes without them")
    return Library(handle)


def _folders() -> list[Path]:
    # An editable installation keeps what was compiled apart from the source. SUBBYTE_KERNELS: of another build.
    if "SUBBYTE_KERNELS" in os.environ:
        return [Path(os.environ["SUBBYTE_KERNELS"])]
    return [Path(folder) for folder in sys.modules[__package__].__path__]


def _check_nothing_asked() -> None:
    asked = os.environ.get("SUBBYTE_ISA", "")
    if asked:
        raise KernelError(
            f"SUBBYTE_ISA is {asked!r}, but this installation was built without a C++ compiler and has no native "
            "kernels; install it again where there is one, or unset SUBBYTE_ISA"
        )
