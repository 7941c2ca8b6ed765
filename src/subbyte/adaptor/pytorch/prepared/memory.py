"""Whether what is about to be kept fits in memory: told before, not by the operating system."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from subbyte.adaptor.pytorch.prepared.capture import Call
from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.errors import CalibrationError

_MEMINFO = Path("/proc/meminfo")
_GIB = 1 << 30


def check_fits(name: str, calls: Iterable[Call], batches: int) -> None:
    """Refuse to collect a block's activations that main memory cannot hold.

    Args:
        name: of the block.
        calls: of one batch: inputs and outputs.
        batches: how many there will be, of the quantized and of the float model each.

    Raises:
        CalibrationError: saying how much there is and how much it would take.
    """
    tensors = {id(x): x for call in calls for x in tensors_in((call.args, call.kwargs, call.output))}
    needed, free = 2 * batches * sum(map(_bytes_in_main_memory, tensors.values())), available()
    if free is not None and needed > free:
        raise CalibrationError(
            f"block {name!r}: what passes through it for all calibration samples takes {needed / _GIB:.1f} GiB, and "
            f"{free / _GIB:.1f} GiB are free; give fewer samples, or shorter sequences"
        )


def available() -> int | None:
    """Bytes of main memory that can be taken; None where the system does not tell."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return found[0] * 1024 if found else None


def _bytes_in_main_memory(x: Tensor) -> int:
    return x.nbytes if x.device.type == "cpu" else 0
