"""`subbyte dtypes`."""

import pytest
from typer.testing import CliRunner

from subbyte.cli.main import app
from subbyte.dtypes import registered_dtypes

runner = CliRunner()


def rows(stdout: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in stdout.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in cells}


def test_every_registered_type_is_a_row():
    result = runner.invoke(app, ["dtypes"])
    assert result.exit_code == 0
    assert set(rows(result.stdout)) == set(registered_dtypes())


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("int4", ["integer", "4", "-8..7", "minmax"]),
        ("uint2", ["integer", "2", "0..3", "minmax"]),
        ("bint1", ["codebook", "1", "{-1, 1}", "mean_abs"]),
        ("ternary", ["codebook", "2", "{-1, 0, 1}", "twn"]),
        ("fp32", ["float", "32", "not quantized", "-"]),
    ],
)
def test_a_row_says_kind_bits_values_and_algorithm(name, row):
    assert rows(runner.invoke(app, ["dtypes"]).stdout)[name] == row


def test_a_capability_file_adds_its_own(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: pytorch_cpu\ndtypes:\n  listed_by_cli: {values: [-1, -0.5, 0.25, 1]}\n")
    result = runner.invoke(app, ["dtypes", "--capability", str(file)])
    assert rows(result.stdout)["listed_by_cli"] == ["codebook", "2", "{-1, -0.5, 0.25, 1}", "minmax"]


def test_a_wrong_capability_file_is_told_with_its_line(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: pytorch_cpu\ndtypes:\n  too_small: {bits: 1, values: [1, 2, 3]}\n")
    result = runner.invoke(app, ["dtypes", "--capability", str(file)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{file}:3" in result.stderr
