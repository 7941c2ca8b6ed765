"""`subbyte doctor`: from a recipe to what is wrong with its model."""

import json

import pytest
from typer.testing import CliRunner

from subbyte.cli.main import app

runner = CliRunner()

ZOO = """\
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))

def batches():
    torch.manual_seed(1)
    for _ in range(3):
        yield torch.randn(4, 1, 8, 8)

def labelled():
    return [(torch.randn(4, 1, 8, 8), torch.zeros(4))]
"""
RECIPE = {"model": "zoo.py:net", "data": "zoo.py:batches", "config": "w2a8", "output": "out.safetensors"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "zoo.py").write_text(ZOO)
    return tmp_path


def run(folder, command, *options, **keys):
    recipe = {key: value for key, value in (RECIPE | keys).items() if value is not None}
    (folder / "recipe.yaml").write_text("".join(f"{key}: {value}\n" for key, value in recipe.items()))
    return runner.invoke(app, [command, str(folder / "recipe.yaml"), *map(str, options)])


def test_it_prints_what_it_finds_and_saves_no_model(folder):
    result = run(folder, "doctor")
    assert result.exit_code == 0, result.stderr
    assert "Conv2d" in result.stdout
    assert "error first jumps at " in result.stdout
    assert "over 12 samples" in result.stdout  # a generator is made anew for the comparison
    assert "comparing" in result.stderr
    assert not (folder / "out.safetensors").exists()


def test_it_writes_page_and_figures(folder):
    page, figures = folder / "found.html", folder / "found.json"
    result = run(folder, "doctor", "--html", page, "--json", figures)
    assert result.exit_code == 0, result.stderr
    assert f"saved to {page}" in result.stdout
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert [op["name"] for op in json.loads(figures.read_text())["ops"]] == ["0", "4"]


def test_a_checkpoint_is_examined_in_place_of_a_new_model(folder):
    assert run(folder, "quantize", config="w8a8").exit_code == 0
    found = folder / "found.json"
    result = run(
        folder, "doctor", "--checkpoint", folder / "out.safetensors", "--json", found
    )  # the recipe asks for w2a8
    assert result.exit_code == 0, result.stderr
    assert json.loads(found.read_text())["ops"][0]["precision"] == "int8 / uint8"
    assert "quantizing" not in result.stderr


def test_what_is_wrong_is_told_with_its_line(folder):
    result = run(folder, "doctor", data=None)
    assert result.exit_code == 2
    assert "the key 'data' is missing" in result.stderr
    result = run(folder, "doctor", data="zoo.py:labelled")
    assert result.exit_code == 2
    assert "recipe.yaml:2: data: the model does not run" in result.stderr
    result = run(folder, "doctor", "--html", folder / "page.txt")
    assert result.exit_code == 2
    assert "saved as .json or .html" in result.stderr
    assert "quantizing" not in result.stderr
    result = run(folder, "doctor", "--html", folder / "page.json")
    assert result.exit_code == 2
    assert "page.json does not end in .html" in result.stderr
    result = run(folder, "doctor", "--checkpoint", folder / "none.safetensors")
    assert result.exit_code == 2
    assert "none.safetensors" in result.stderr
