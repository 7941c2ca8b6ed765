"""Resident memory of this process, as Linux tells it."""

import sys
from pathlib import Path


def resident() -> int:
    """Bytes, now."""
    return _status("VmRSS")


def peak() -> int:
    """Bytes at most, since the process began or `forget_peak` was called."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let the peak be what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        sys.exit("resident memory is read from /proc/self/status, which only Linux has")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
