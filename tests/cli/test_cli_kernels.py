"""`subbyte kernels`."""

import os
import subprocess
import sys

from subbyte.kernels import isas


def listed(**environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: kernels are chosen when a process starts."""
    command = [sys.executable, "-c", "from subbyte.cli.main import run; run()", "kernels"]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def test_it_lists_every_set_and_marks_the_one_in_use() -> None:
    run = listed(COLUMNS="160")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert all(any(isa.name in line for line in lines) for isa in isas())
    used = next(isa for isa in isas() if isa.used)
    assert all(f"{family}={name}" in run.stdout for family, name in used.families.items())


def test_the_environment_forces_one() -> None:
    run = listed(SUBBYTE_ISA="torch", COLUMNS="160")
    assert "SUBBYTE_ISA is 'torch'" in run.stdout
    assert run.returncode == 0


def test_one_that_is_not_there_is_one_message_and_exit_code_2() -> None:
    run = listed(SUBBYTE_ISA="mmx")
    assert run.returncode == 2
    assert "mmx" in run.stderr
    assert "Traceback" not in run.stderr
