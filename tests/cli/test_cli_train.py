"""`subbyte train`: from a recipe to a trained checkpoint."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import subbyte
from subbyte.cli.digits import DigitNet, load_digits
from subbyte.cli.main import app
from subbyte.cli.recipe import Recipe
from subbyte.cli.train_recipe import TrainRecipe, TrainRecipeFile
from subbyte.export.safe_file import read

runner = CliRunner()

ZOO = """\
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
from subbyte.cli.digits import DigitNet, load_digits

train, test = load_digits(0)

def net():
    torch.manual_seed(0)
    return DigitNet(16)

def data():
    return train.images[:128]

def loader():
    return DataLoader(TensorDataset(train.images, train.labels), 64, shuffle=True)

def accuracy(model):
    return test.accuracy(model)

def interrupted_accuracy(model):
    calls = Path(__file__).with_name("calls")
    with calls.open("a") as file:
        file.write("x")
    if len(calls.read_text()) == 2:
        raise KeyboardInterrupt
    return test.accuracy(model)

def nan_loss(output, target):
    return output.sum() * float("nan")

def failing(output, target):
    raise RuntimeError("no labels")

def says_good(model):
    return "good"

def vector_loss(output, target):
    return output.sum(1)

def dead_loss(output, target):
    return torch.nn.functional.cross_entropy(output.detach(), target)

def plain_net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))

pairs = [(data(), train.labels[:128], 0)]
wide = [(data().expand(-1, 3, -1, -1), train.labels[:128])]
none = []

def generator():
    yield data(), train.labels[:128]
"""
RECIPE = {
    "model": "zoo.py:net", "data": "zoo.py:data", "loader": "zoo.py:loader",
    "loss": "torch.nn.functional:cross_entropy", "evaluate": "zoo.py:accuracy", "config": "w4a4",
    "first_last": "int8", "output": "out.safetensors",
    "train": "{epochs: 2, optimizer: {AdamW: {lr: .003}}, lr_schedule: CosineAnnealingLR, reestimate_batch_norm: true}",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "zoo.py").write_text(ZOO)
    return tmp_path


def train(folder, **keys):
    """Run a recipe: the one above with some keys changed; None leaves one out."""
    recipe = {key: value for key, value in (RECIPE | keys).items() if value is not None}
    (folder / "recipe.yaml").write_text("".join(f"{key}: {value}\n" for key, value in recipe.items()))
    return runner.invoke(app, ["train", str(folder / "recipe.yaml")])


def contents(folder):
    """What the checkpoint holds, in plain data."""
    tensors, header = read(folder / "out.safetensors")
    return {name: tensor.tolist() for name, tensor in tensors.items()}, header


def test_it_trains_and_says_how_good_the_model_is(folder):
    result = train(folder)
    assert result.exit_code == 0, result.stderr
    _, test = load_digits(0)
    torch.manual_seed(0)
    net = DigitNet(16).eval()
    loaded = subbyte.load(folder / "out.safetensors", net)
    accuracy, totals = test.accuracy(loaded), subbyte.summary(loaded).totals
    assert accuracy > test.accuracy(net) + 0.25
    rows = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith(("│ fp32", "│ quantized"))]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["fp32", f"{test.accuracy(net):.6g}", f"{totals['float_bytes']:,}"],
        ["quantized", f"{accuracy:.6g}", f"{totals['bytes']:,}"],
    ]
    assert f"saved to {folder / 'out.safetensors'}" in result.stdout
    assert "2 epochs in" in result.stdout
    assert not (folder / "out.safetensors.training").exists()
    said = [line for line in result.stderr.splitlines() if line.startswith("epoch ")]
    assert [line.split(":")[0] for line in said] == ["epoch 1 of 2", "epoch 2 of 2"]
    assert all(re.search(r": loss \S+, learning rate \S+, metric 0\.\d+, \S+ s$", line) for line in said)
    assert "step" not in result.stderr  # no terminal, no line of the steps


def test_stages_distillation_rules_and_batch_norm(folder):
    plan = (
        "{epochs: 2, stages: [{at: 0.3, config: w4a4}, {at: 0.6, config: two.yaml}], freeze_batch_norm: 0.8, "
        "reestimate_batch_norm: true, clip_gradients: 1, keep: best}"
    )
    (folder / "two.yaml").write_text("precision: w2a2\n")
    result = train(
        folder, config="w8a8", train=plan, distill="{logits: 1, blocks: 2, temperature: 2}", teacher="zoo.py:net",
        training="{weight: ewgs}",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    loaded = subbyte.load(folder / "out.safetensors", DigitNet(16))
    assert {name: weight.spec.dtype.name for name, weight in subbyte.weights(loaded).items()} == {
        "conv1": "int8", "conv2": "int2", "conv3": "int2", "classifier": "int8",
    }  # fmt: skip


def test_interrupted_it_goes_on_and_the_best_so_far_is_there(folder):
    whole = train(folder)
    expected = contents(folder)
    assert whole.exit_code == 0
    (folder / "out.safetensors").unlink()
    result = train(folder, evaluate="zoo.py:interrupted_accuracy")
    assert result.exit_code == 130
    assert ".training: 1; the same" in result.stderr
    subbyte.load(folder / "out.safetensors", DigitNet(16))  # of the first epoch
    assert contents(folder) != expected
    again = train(folder, evaluate="zoo.py:interrupted_accuracy")
    assert again.exit_code == 0, again.stderr
    assert contents(folder) == expected
    assert not (folder / "out.safetensors.training").exists()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"loader": None}, "recipe.yaml:1: the key 'loader' is missing"),
        ({"lodaer": "x", "loader": None}, "unknown key 'lodaer'; did you mean 'loader'"),
        ({"epochs": "3"}, "unknown key 'epochs', which is one of the mapping 'train': write it there"),
        ({"train": "{epochs: 0}"}, "recipe.yaml:9: train: epochs: input should be greater than 0, found 0"),
        ({"train": "{}"}, "recipe.yaml:9: train: epochs: it is missing"),
        ({"train": "3"}, "recipe.yaml:9: train: expected a mapping, found 3"),
        ({"train": "{epochs: 1, optimiser: SGD}"}, "train: optimiser: unknown key .*; did you mean 'optimizer'"),
        ({"train": "{epochs: 1, optimizer: SGDD}"}, "train: optimizer: 'SGDD' is unknown; did you mean 'SGD'"),
        ({"train": "{epochs: 1, stages: [{at: 2.0, config: w4}]}"}, "train: stages: stages.0.at: input should be less"),
        ({"train": "{epochs: 1, stages: [{at: 0.5, config: w4444a4}]}"}, "w4444a4"),
        ({"training": "{weight: lqs}"}, "recipe.yaml:10: training: gradient 'lqs' is unknown"),
        ({"training": "{wieght: lsq}"}, "recipe.yaml:10: training: unknown key 'wieght'; did you mean 'weight'"),
        ({"distill": "logit"}, "recipe.yaml:10: distill: distillation: 'logit' is unknown; did you mean 'logits'"),
        ({"distill": "[logits]"}, "recipe.yaml:10: distill: expected logits, blocks"),
        ({"teacher": "zoo.py:net"}, "recipe.yaml:10: teacher: nothing is learned from it"),
        ({"distill": "logits", "teacher": "zoo.py:data"}, "recipe.yaml:11: teacher: zoo.py:data gave a Tensor"),
        ({"config": "fp32", "first_last": None}, "recipe.yaml:6: config: .*quantizes nothing"),
        ({"loss": "zoo.py:nan_loss"}, "recipe.yaml:9: train: training failed in step 1: the loss is not finite"),
        ({"loss": "zoo.py:failing"}, "recipe.yaml:4: loss: zoo.py:failing failed with RuntimeError: no labels"),
        ({"loss": "zoo.py:los"}, "recipe.yaml:4: loss: .*has no 'los'"),
        ({"evaluate": "zoo.py:says_good"}, "recipe.yaml:5: evaluate: evaluate: a metric is one number, not 'good'"),
        ({"loader": "zoo.py:pairs"}, "recipe.yaml:3: loader: a batch is a pair .*not 3 parts"),
        ({"loader": "zoo.py:none"}, "recipe.yaml:3: loader: it is empty"),
        ({"loader": "zoo.py:generator"}, "recipe.yaml:3: loader: the length of an epoch"),
        ({"loader": "zoo.py:wide"}, "recipe.yaml:3: loader: the model does not run on the batch of step 1 .*3, 8, 8"),
        ({"loss": "zoo.py:vector_loss"}, r"recipe.yaml:4: loss: a loss is a tensor of one value, not \(64,\)"),
        ({"loss": "zoo.py:dead_loss"}, "recipe.yaml:4: loss: the loss has no gradient"),
        ({"seed": -1}, "recipe.yaml:10: seed: a whole number"),
        ({"training": "{ops: {conv9: {weight: lsq}}}"}, "recipe.yaml:10: training: ops: 'conv9' matches no"),
        (
            {"distill": "{blocks: 1, pairs: {conv9: conv1}}"},
            "recipe.yaml:10: distill: pairs: the student has no module 'conv9'",
        ),
        ({"train": "{epochs: 1, stages: [{at: 0.5, config: w44}]}"}, "recipe.yaml:9: train: stages: .*w44: bits are"),
        ({"train": "{epochs: 1, stages: [{at: 0.999, config: w4}]}"}, "recipe.yaml:9: train: stages: one at 0.999"),
        (
            {"train": "{epochs: 1, stages: [{at: 0.5, config: {op_name_dict: {conv9: {weight: {dtype: [int4]}}}}}]}"},
            "recipe.yaml:9: train: stages: .*conv9",
        ),
        ({"train": "{epochs: 1, lr_schedule: {CosineAnnealingLR: {T_max: all}}}"}, "recipe.yaml:9: train: lr_schedule"),
        (
            {"train": "{epochs: 1, lr_schedule: {OneCycleLR: {max_lr: 0.1, total_steps: 5}}}"},
            "recipe.yaml:9: train: lr_schedule: OneCycleLR fails in step 6 of",
        ),
        (
            {"model": "zoo.py:plain_net", "train": "{epochs: 1, freeze_batch_norm: 0.5}"},
            "recipe.yaml:9: train: freeze_batch_norm: the model has no BatchNorm",
        ),
        ({"output": "/proc/out.safetensors"}, "recipe.yaml:8: output: cannot keep the training in /proc/"),
        ({"loader": "zoo.py:nothing"}, "recipe.yaml:3: loader: .*has no 'nothing'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(folder, keys, message):
    result = train(folder, **keys)
    assert result.exit_code == 2, result.stderr
    assert re.search(message, result.stderr.replace("\n", " ")), result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_keeps_another_training_is_told(folder):
    train(folder, evaluate="zoo.py:interrupted_accuracy")
    result = train(folder, train="{epochs: 3}")
    assert result.exit_code == 2
    assert re.search("recipe.yaml:8: output: .* keeps another training: epochs was 2 and is 3", result.stderr)
    result = train(folder, loss="torch.nn.functional:multi_margin_loss")
    assert "loss_fn was torch.nn.functional:cross_entropy and is torch.nn.functional:multi_margin" in result.stderr


def test_the_plan_is_the_same_wherever_the_command_runs(folder, monkeypatch):
    """By it a training that is taken up is known."""
    (folder / "two.yaml").write_text("precision: w2a2\n")
    keys = RECIPE | {"train": "{epochs: 2, stages: [{at: 0.5, config: two.yaml}]}"}
    (folder / "recipe.yaml").write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    plans = [TrainRecipeFile(folder / "recipe.yaml").plan]
    monkeypatch.chdir(folder)
    plans.append(TrainRecipeFile(Path("recipe.yaml")).plan)
    assert repr(plans[0]) == repr(plans[1])


def test_every_key_is_documented():
    documented = inspect.getdoc(TrainRecipe) + inspect.getdoc(Recipe)
    assert all(f"    {name}:" in documented for name in TrainRecipe.model_fields)
