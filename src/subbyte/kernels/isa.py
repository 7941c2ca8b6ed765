"""The instruction sets that the native kernels know."""

from dataclasses import dataclass

from subbyte.errors import KernelError
from subbyte.kernels.library import library


@dataclass(frozen=True)
class Isa:
    """One set of kernels in the native library.

    Args:
        name: as SUBBYTE_ISA takes it.
        needs: features of the CPU.
        available: whether this CPU has them.
        used: whether it is the one in use.
        families: for each family of kernels, the set whose kernels serve it: a narrower one where the CPU lacks a
            feature that this family alone needs.
    """

    name: str
    needs: tuple[str, ...]
    available: bool
    used: bool
    families: dict[str, str]


def isas() -> list[Isa]:
    """Those of this build, from the narrowest to the widest; none without a native library."""
    handle = library().handle
    if handle is None:
        return []
    rows = [line.split("\t") for line in handle.subbyte_isas().decode().splitlines()]
    return [
        Isa(name, tuple(needs.split()), available == "yes", used == "yes", dict(x.split("=") for x in families.split()))
        for name, needs, available, used, families in rows
    ]


def used_isa() -> str:
    """The name of the set in use: `torch` where there is no native library."""
    return next((isa.name for isa in isas() if isa.used), "torch")


def use_isa(name: str) -> None:
    """Run the kernels of one instruction set from now on; the environment's SUBBYTE_ISA does it from the start.

    Args:
        name: as in `Isa.name`; empty for the widest that this CPU has; `avx512-avx512_vnni` is AVX-512 as a CPU
            without the feature after the dash would have it. Not while kernels run in another thread.

    Raises:
        KernelError: there is no such set here.
    """
    handle = library().handle
    problem = library().reason.encode() if handle is None else handle.subbyte_use_isa(name.encode())
    if problem is not None:
        raise KernelError(problem.decode())
