"""`subbyte demo`: trains, quantizes, saves, loads; and the network it does that with."""

import builtins

import pytest
import torch
from typer.testing import CliRunner

import subbyte
from subbyte.cli import digits
from subbyte.cli.main import app

runner = CliRunner()


@pytest.fixture
def short_training(monkeypatch):
    monkeypatch.setattr(digits, "_EPOCHS", 2)


def test_the_demo_shows_accuracy_and_size_and_loads_what_it_saved(short_training, tmp_path):
    path = tmp_path / "demo.safetensors"
    result = runner.invoke(app, ["demo", "--output", str(path)])
    assert result.exit_code == 0, result.stderr
    for precision in ("fp32", "w8a8", "w4a4", "w2a2", "wbint1a8:mean_abs"):
        assert f"│ {precision} " in result.stdout
    assert f"saved w4a4 to {path}" in result.stdout
    assert "are equal, bit for bit" in result.stdout
    loaded = subbyte.load(path, digits.DigitNet())
    types = {name: weight.spec.dtype.name for name, weight in subbyte.weights(loaded).items()}
    assert types == {"conv1": "int8", "conv2": "int4", "conv3": "int4", "classifier": "int8"}


def test_training_is_repeatable_and_leaves_the_random_state_alone(short_training):
    train, test = digits.load_digits(seed=0)
    before = torch.get_rng_state()
    first, second = digits.trained_network(train, seed=3), digits.trained_network(train, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first(test.images), second(test.images))
    assert first.training is False
    assert test.accuracy(first) > 0.9


def test_no_image_is_in_both_sets():
    train, test = digits.load_digits(seed=0)
    assert len(train.images) + len(test.images) == 1797
    assert test.images.shape[1:] == (1, 8, 8)
    assert 0 <= float(train.images.min()) < float(train.images.max()) <= 1


def test_a_missing_scikit_learn_is_told(monkeypatch, tmp_path):
    real_import = builtins.__import__

    def without_sklearn(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_sklearn)
    result = runner.invoke(app, ["demo", "--output", str(tmp_path / "demo.safetensors")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "pip install 'subbyte[demo]'" in result.stderr


def test_an_output_that_cannot_be_is_told_before_training(tmp_path):
    result = runner.invoke(app, ["demo", "--output", str(tmp_path / "nowhere" / "demo.safetensors")])
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr
