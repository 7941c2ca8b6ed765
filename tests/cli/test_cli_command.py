"""Errors are one message and an exit code, wherever --debug stands."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import subbyte
from subbyte.cli import main
from subbyte.cli.command import Application, Command
from subbyte.errors import ConfigError

runner = CliRunner()


def app_that_raises(error: BaseException) -> typer.Typer:
    app = typer.Typer(cls=Application, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.callback()
    def options(debug: bool = False) -> None: ...

    @app.command(cls=Command)
    def work(size: int = 0) -> None:
        raise error

    return app


def test_an_error_of_ours_is_its_message_and_exit_code_2():
    result = runner.invoke(app_that_raises(ConfigError("no such thing; try another")), ["work"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: no such thing; try another\n"


def test_an_error_message_cannot_control_the_terminal():
    result = runner.invoke(app_that_raises(ConfigError("op \x1b[2J\x9b2J[red]x")), ["work"])
    assert result.stderr == "Error: op \\x1b[2J\\x9b2J[red]x\n"


def test_any_other_error_names_its_kind_and_place_without_a_traceback():
    result = runner.invoke(app_that_raises(KeyError("x")), ["work"])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: KeyError: 'x'")
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_interrupt_is_exit_code_130():
    result = runner.invoke(app_that_raises(KeyboardInterrupt()), ["work"])
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")
    interrupt = KeyboardInterrupt()
    interrupt.add_note("run again to go on after 3 units")
    assert runner.invoke(app_that_raises(interrupt), ["work"]).stderr == "run again to go on after 3 units\n"


@pytest.mark.parametrize("arguments", [["--debug", "work"], ["work", "--debug"], ["work", "--debug", "--size", "3"]])
def test_debug_shows_the_traceback(arguments):
    result = runner.invoke(app_that_raises(ConfigError("wrong")), arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("subbyte.errors.ConfigError: wrong\n")


@pytest.mark.parametrize(
    "arguments", [["nope"], ["dtypes", "--nope"], ["quantize"], ["capability", "nope"], ["dtypes", "superfluous"]]
)
def test_wrong_usage_is_exit_code_2_on_standard_error(arguments):
    result = runner.invoke(main.app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


@pytest.mark.parametrize("command", ["demo", "quantize", "summary", "capability", "dtypes"])
def test_help_lists_every_command(command):
    result = runner.invoke(main.app, ["--help"])
    assert result.exit_code == 0
    assert f"  {command} " in result.stdout


def test_version():
    assert runner.invoke(main.app, ["--version"]).stdout == f"subbyte {subbyte.__version__}\n"


def test_the_installed_entry_point_runs_in_a_process_of_its_own(tmp_path):
    def subbyte_command(*arguments):
        code = "from subbyte.cli.main import run; run()"
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path)

    result = subbyte_command("summary", "nothing.safetensors")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "Error: there is no checkpoint at nothing.safetensors\n"
    result = subbyte_command("summary", "nothing.safetensors", "--debug")
    assert "Traceback" in result.stderr
    assert result.returncode == 2
