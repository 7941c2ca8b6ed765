"""The file in which measured latencies are kept, by machine."""

import json
import os
import platform
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import torch

from subbyte.adaptor.pytorch.latency.stopwatch import Timing
from subbyte.kernels import used_isa

VARIABLE = "SUBBYTE_LATENCY_FILE"
_FORMAT = 2
_CPUINFO = Path("/proc/cpuinfo")


def default_path() -> Path:
    """Where the environment says (`SUBBYTE_LATENCY_FILE`), else `subbyte/latency.json` in the user's cache folder."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "subbyte" / "latency.json"


def machine(device: torch.device) -> str:
    """What a latency hangs on beside the op: processor, instruction set, threads, versions."""
    versions = f"subbyte {version('subbyte')}, torch {torch.__version__}"
    if device.type != "cpu":
        return f"{torch.get_device_module(device).get_device_name(device)}, {versions}"
    return f"{_processor()}, {used_isa()}, threads: {torch.get_num_threads()}, {versions}"


def _processor() -> str:
    """The model of the CPU, where the system tells it; else what Python knows."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


class LatencyFile:
    """Seconds and their spread by a text that says of what, of one machine; JSON.

    A file that cannot be read or written is a warning, not an error: what it held is measured anew.

    Args:
        path: of the file; it need not be there.
        machine: whose latencies are looked at; those of others are kept.
    """

    def __init__(self, path: Path, machine: str) -> None:
        self._path = path
        self._machine = machine
        self._known = self._read().get(machine, {})

    def get(self, what: str) -> Timing | None:
        """Seconds, where they are known."""
        found = self._known.get(what)
        return None if found is None else Timing(*found)

    def add(self, what: str, timing: Timing) -> None:
        """Keep a latency, beside what other processes have added meanwhile."""
        self._known[what] = [timing.seconds, timing.spread]
        found = self._read()
        found[self._machine] = found.get(self._machine, {}) | self._known
        try:
            self._write(json.dumps({"format": _FORMAT, "seconds": found}, indent=1))
        except OSError as error:
            warnings.warn(f"latencies cannot be kept in {self._path} ({error}); set {VARIABLE}", stacklevel=2)

    def _read(self) -> dict[str, dict[str, list[float]]]:
        try:
            return _checked(json.loads(self._path.read_text()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            warnings.warn(
                f"{self._path} holds no latencies that can be read ({error}); they are measured anew", stacklevel=2
            )
            return {}

    def _write(self, text: str) -> None:
        """All or nothing: another process may be reading."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            os.replace(temporary, self._path)
        except BaseException:
            os.unlink(temporary)
            raise


def _checked(content: object) -> dict[str, dict[str, list[float]]]:
    """What is in a file, if it is one of ours.

    Raises:
        ValueError: it is not.
    """
    found = content.get("seconds") if isinstance(content, dict) and content.get("format") == _FORMAT else None
    if not isinstance(found, dict) or not all(map(_is_table, found.values())):
        raise ValueError("it is not a file of latencies")
    return found


def _is_table(values: object) -> bool:
    return isinstance(values, dict) and all(
        isinstance(each, list) and len(each) == 2 and all(isinstance(number, float) and number > 0 for number in each)
        for each in values.values()
    )
