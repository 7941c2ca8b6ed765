"""What this processor can do at most, measured by `ceilings.cpp`, which is compiled for it."""

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("ceilings.cpp")
COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class Ceiling:
    """Thousands of millions of bytes or operations a second; a multiplication and an addition are two.

    Args:
        name: of what was done.
        unit: GB/s, GFLOP/s or GOP/s.
        threads: that did it.
        best, median: of several rounds.
    """

    name: str
    unit: str
    threads: int
    best: float
    median: float


@dataclass(frozen=True)
class Ceilings:
    """The rows, and why there are none or fewer."""

    rows: tuple[Ceiling, ...]
    remarks: tuple[str, ...]

    def of(self, name: str) -> float | None:
        """The best of two threads."""
        return next((row.best for row in self.rows if row.name == name and row.threads == 2), None)


def measured() -> Ceilings:
    """Compile and run; seconds."""
    asked = os.environ.get("CXX")
    compiler = asked or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        return Ceilings((), ("No C++ compiler, hence no ceilings and no shares of them.",))
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "ceilings")
        command = [*compiler.split(), "-O3", "-std=c++17", "-pthread", "-o", program, str(SOURCE)]
        subprocess.run(command, check=True)
        output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    found = json.loads(output)
    rows = tuple(Ceiling(**row) for row in found["rows"])
    return Ceilings(rows, tuple(f"This CPU lacks what it takes for: {each}." for each in found["lacks"]))
