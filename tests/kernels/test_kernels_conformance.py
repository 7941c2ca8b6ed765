"""The kernels without PyTorch: every instruction set against the reference, here and on an emulated ARM."""

import shutil
import subprocess
from pathlib import Path

import pytest

from subbyte.kernels import isas

SOURCE = Path(__file__).resolve().parents[2]
ARM = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++"]
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
# What it is built with, what runs it, and what it must say.
BUILDS = {
    "here": ([], [], ["cmake", "c++"], "scalar: agrees"),
    "sanitized": (["-DSUBBYTE_SANITIZE=ON"], [], ["cmake", "c++"], "scalar: agrees"),
    "arm": (ARM, EMULATOR, ["cmake", "aarch64-linux-gnu-g++", "qemu-aarch64"], "neon: agrees"),
    "arm without sdot": (
        ARM,
        [*EMULATOR, "-E", "SUBBYTE_ISA=neon-asimddp"],
        ["cmake", "aarch64-linux-gnu-g++", "qemu-aarch64"],
        "neon: agrees",
    ),
}
# The installed kernels are built as "here" is, and the other tests run them.
SLOW = {"here": [pytest.mark.slow]}
POSSIBLE = [
    pytest.param(name, marks=SLOW.get(name, []))
    for name, (_, _, tools, _) in BUILDS.items()
    if all(map(shutil.which, tools))
]


@pytest.mark.parametrize("name", POSSIBLE)
def test_every_instruction_set_agrees_with_the_reference(name: str, tmp_path: Path) -> None:
    options, runner, _, expected = BUILDS[name]
    subprocess.run(["cmake", "-S", SOURCE, "-B", tmp_path, *options], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path, "--target", "conformance"], check=True, capture_output=True)
    run = subprocess.run([*runner, tmp_path / "conformance", "1"], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert expected in run.stdout


def test_where_there_is_a_compiler_there_are_kernels() -> None:
    """An install whose build failed goes on in PyTorch, and all other tests would pass there."""
    assert isas() or shutil.which("c++") is None
