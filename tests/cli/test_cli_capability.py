"""`subbyte capability check` and `show`."""

import pytest
from typer.testing import CliRunner

from subbyte.cli.main import app

runner = CliRunner()

CHIP = """\
version: {name: my-chip}
default: int8
dtypes:
  int3_of_cli: {bits: 3, signed: true, narrow: true}
capabilities:
  fp32: ['*']
  int8:
    static:
      Conv2d: &conv
        weight: {dtype: [int8], scheme: [sym], granularity: [per_channel], algorithm: [minmax]}
        activation: {dtype: [uint8, uint4], scheme: [sym], granularity: [per_tensor], algorithm: [minmax]}
      add: {activation: {dtype: [uint8], scheme: [sym], granularity: [per_tensor], algorithm: [minmax]}}
  tiny:
    static:
      Conv2d:
        weight: {dtype: [int3_of_cli, nf4], scheme: [sym], granularity: [per_channel], algorithm: [minmax]}
fusions: [[Conv2d, ReLU]]
constraints:
  - {where: {position: [first, last]}, precision: int8}
"""

MODEL = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.head = nn.Linear(2, 2)
        self.mix = nn.Bilinear(2, 2, 2)

    def forward(self, x):
        x = self.norm(self.conv(x))
        x = self.head((x + x).mean(dim=(2, 3)))
        return self.mix(x, x)

batch = torch.ones(1, 1, 4, 4)
"""


@pytest.fixture
def chip(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chip.yaml").write_text(CHIP)
    (tmp_path / "net.py").write_text(MODEL)
    return "chip.yaml"


def test_check_prints_every_derived_range(chip):
    result = runner.invoke(app, ["capability", "check", chip])
    assert result.exit_code == 0
    for text in ("int8 -128..127", "uint8 0..255; uint4 0..15", "int3_of_cli -3..3", "nf4 -1..1 (16 values)"):
        assert text in result.stdout
    assert "chip.yaml: correct" in result.stdout


def test_check_of_the_built_in_names_all_its_op_types():
    result = runner.invoke(app, ["capability", "check", "pytorch_cpu"])
    assert result.exit_code == 0
    assert all(op in result.stdout for op in ("Conv2d", "Linear", "Embedding", "scaled_dot_product_attention"))


def coverage(stdout: str) -> dict[str, str]:
    """By op, the line that says whether it is covered."""
    lines = stdout.partition("ops of net.py:Net")[2].splitlines()
    return {line.split("│")[1].strip(): line for line in lines if "│" in line}


def test_check_says_which_modules_of_a_model_are_covered(chip):
    result = runner.invoke(app, ["capability", "check", chip, "--model", "net.py:Net"])
    assert result.exit_code == 0
    rows = coverage(result.stdout)
    assert set(rows) == {"conv", "head", "mix"}  # a norm is folded
    assert "int8, tiny" in rows["conv"]
    assert "my-chip does not list Linear" in rows["head"]
    assert "no quantized form" in rows["mix"]


def test_check_with_data_finds_functional_ops(chip):
    result = runner.invoke(app, ["capability", "check", chip, "--model", "net.py:Net", "--data", "net.py:batch"])
    assert "static" in coverage(result.stdout)["add"]


@pytest.mark.parametrize("command", ["check", "show"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("constraints:", "constraint:", "chip.yaml:18: unknown key 'constraint'; did you mean 'constraints'?"),
        ("uint4]", "unt4]", "did you mean 'uint4'?"),
        ("fusions: [[", "fusions: [[[", "not readable as YAML"),
    ],
)
def test_a_wrong_file_is_told_with_line_and_nearest_spelling(chip, tmp_path, command, old, new, message):
    (tmp_path / chip).write_text(CHIP.replace(old, new))
    result = runner.invoke(app, ["capability", command, chip])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "chip.yaml:" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.yaml"], "no capability file 'nothing.yaml'"),
        (["chip.yaml", "--data", "net.py:batch"], "--data is for --model"),
        (["chip.yaml", "--model", "net.py:Nte"], "did you mean 'Net'?"),
        (["chip.yaml", "--model", "net.py:batch"], "gave a Tensor"),
        (["chip.yaml", "--model", "nothing.py:Net"], "there is no file"),
    ],
)
def test_what_cannot_be_checked_is_refused(chip, arguments, message):
    result = runner.invoke(app, ["capability", "check", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_show_prints_precisions_types_fusions_and_constraints(chip):
    result = runner.invoke(app, ["capability", "show", chip])
    assert result.exit_code == 0
    for text in (
        "my-chip (default precision: int8)",
        "Conv2d, add",
        "stays in fp32: any op type",
        "data type int3_of_cli: -3..3",
        "runs as one op: Conv2d + ReLU",
        "constraint: position first or last: int8",
    ):
        assert text in result.stdout


def test_show_without_a_file_shows_the_built_in():
    result = runner.invoke(app, ["capability", "show"])
    assert result.exit_code == 0
    assert "pytorch_cpu (default precision: int8)" in result.stdout


def test_check_warns_of_an_entry_that_nothing_implements(chip, tmp_path):
    lists = "{dtype: [uint8], scheme: [sym], granularity: [per_tensor], algorithm: [minmax]}"
    (tmp_path / "chip.yaml").write_text(
        CHIP.replace("      add:", f"      Bilinear: {{activation: {lists}}}\n      add:")
    )
    result = runner.invoke(app, ["capability", "check", chip, "--model", "net.py:Net"])
    assert result.exit_code == 0
    assert "warning: chip.yaml:12: int8, static, Bilinear" in result.stdout.replace("\n", " ")
    assert "chip.yaml: correct" not in result.stdout


def test_check_marks_ops_of_a_chip_without_fp32_as_errors(chip, tmp_path):
    (tmp_path / "chip.yaml").write_text(CHIP.replace("  fp32: ['*']\n", ""))
    arguments = ["capability", "check", chip, "--model", "net.py:Net", "--data", "net.py:batch"]
    found = coverage(runner.invoke(app, arguments).stdout)
    assert "error" in found["head"]
    assert "error" not in found["conv"]
    (tmp_path / "chip.yaml").write_text((tmp_path / "chip.yaml").read_text() + "unsupported: float\n")
    assert "stays float" in coverage(runner.invoke(app, arguments).stdout)["head"]
