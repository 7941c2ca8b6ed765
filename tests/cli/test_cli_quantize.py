"""`subbyte quantize` and `subbyte summary`: from a recipe to a checkpoint and its table."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import subbyte
from subbyte.cli.main import app

runner = CliRunner()

ZOO = """\
import subbyte
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))

def batches():
    torch.manual_seed(1)
    return [torch.randn(4, 1, 8, 8) for _ in range(3)]

def some_then_failure():
    yield torch.randn(4, 1, 8, 8)
    raise KeyError("second batch")

def failing():
    raise RuntimeError("no disk")

def quantized():
    return subbyte.quantize(net(), "w4")

def mean(model):
    return model(torch.ones(1, 1, 8, 8)).mean()

instance = net()
nothing = []
wrong_shape = torch.randn(4, 3, 8, 8)
"""

RECIPE = {"model": "zoo.py:net", "data": "zoo.py:batches", "config": "w4a8", "output": "out.safetensors"}


def network(seed: int) -> nn.Module:
    """What `zoo.py:net` makes with seed 0."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "zoo.py").write_text(ZOO)
    return tmp_path


def quantize(folder, *options, **keys):
    """Run a recipe: the one above with some keys changed; None leaves one out."""
    recipe = {key: value for key, value in (RECIPE | keys).items() if value is not None}
    (folder / "recipe.yaml").write_text("".join(f"{key}: {value}\n" for key, value in recipe.items()))
    return runner.invoke(app, ["quantize", str(folder / "recipe.yaml"), *options])


def test_it_writes_the_checkpoint_that_quantize_would(folder):
    result = quantize(folder, first_last="int8")
    assert result.exit_code == 0, result.stderr
    model = network(seed=0).eval()
    torch.manual_seed(1)
    data = [torch.randn(4, 1, 8, 8) for _ in range(3)]
    expected = subbyte.quantize(model, "w4a8", data, first_last="int8")
    loaded = subbyte.load(folder / "out.safetensors", model)
    assert torch.equal(loaded(data[0]), expected(data[0]))


def test_it_prints_the_table_and_says_where_the_checkpoint_is(folder):
    result = quantize(folder)
    assert "Conv2d" in result.stdout
    assert "as requested" in result.stdout
    assert f"saved to {folder / 'out.safetensors'}" in result.stdout
    assert "quantizing" in result.stderr  # progress is no result


def test_recovery_and_where_it_is_kept(folder):
    result = quantize(folder, recover="[gptq, {bias_correction: {}}]", seed="1", resume="kept")
    assert result.exit_code == 0, result.stderr
    assert (folder / "kept" / "run.json").exists()
    x = torch.randn(2, 1, 8, 8)
    by_call = subbyte.quantize(network(0).eval(), "w4a8", _batches(), recover=["gptq", "bias_correction"], seed=1)
    with torch.no_grad():
        assert torch.equal(subbyte.load(folder / "out.safetensors", network(3))(x), by_call(x))


def _batches():
    torch.manual_seed(1)
    return [torch.randn(4, 1, 8, 8) for _ in range(3)]


def test_evaluate_is_printed_before_and_after(folder):
    assert "zoo.py:mean: " in quantize(folder, evaluate="zoo.py:mean").stdout


def test_a_module_instance_weights_and_a_capability_serve(folder):
    torch.manual_seed(5)
    state = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    ).state_dict()
    save_file(state, folder / "weights.safetensors")
    (folder / "chip.yaml").write_text("extends: pytorch_cpu\ndtypes: {int3_recipe: {bits: 3, signed: true}}\n")
    result = quantize(
        folder, model="zoo.py:instance", weights="weights.safetensors", capability="chip.yaml", config="wint3_recipe"
    )
    assert result.exit_code == 0, result.stderr
    weight = subbyte.weights(subbyte.load(folder / "out.safetensors", network(seed=0)))["0"]
    assert weight.spec.dtype.name == "int3_recipe"
    assert (weight.dequantize() - state["0.weight"]).abs().max() < 0.1


def test_config_may_be_a_mapping_or_a_file(folder):
    (folder / "config.yaml").write_text("precision: w4\n")
    assert quantize(folder, config="config.yaml", data=None).exit_code == 0
    result = quantize(folder, config="{op_type_dict: {Conv2d: {weight: {dtype: [int4]}}}}")
    assert result.exit_code == 0, result.stderr
    assert "int4" in result.stdout


def test_modules_beside_the_recipe_can_be_imported(folder, monkeypatch):
    shutil.move(folder / "zoo.py", folder / "zoo_beside_recipe.py")
    result = quantize(folder, model="zoo_beside_recipe:net", data="zoo_beside_recipe:batches")
    assert result.exit_code == 0, result.stderr


WRONG = [
    ({"modle": "zoo.py:net"}, "recipe.yaml:5: unknown key 'modle'; did you mean 'model'?"),
    ({"output": None}, "recipe.yaml:1: the key 'output' is missing"),
    ({"model": "[1]"}, "recipe.yaml:1: model: expected text, found [1]"),
    ({"config": "3"}, "recipe.yaml:3: config: expected text or a mapping, found 3"),
    ({"config": "'w4"}, "not readable as YAML"),
    ({"config": "w9"}, "recipe.yaml:3: config: "),
    ({"config": "{op_type_dict: {Conv2d: {weight: {dtpe: int4}}}}"}, "recipe.yaml:3: op_type_dict['Conv2d']: weight: "),
    ({"config": "{approach: statc}"}, "did you mean 'static'?"),
    ({"config": "{op_name_dict: {stem: w4}}"}, "recipe.yaml:3: config: op_name_dict['stem']"),
    ({"config": "nothing.yaml"}, "recipe.yaml:3: config: "),
    ({"config": "{op_type_dict: {Conv2d: {weight: {dtype: nf44}}}}"}, "nf4"),
    ({"first_last": "int9"}, "first_last='int9'"),
    ({"output": "."}, "is a folder"),
    ({"output": "same.pt", "weights": "same.pt"}, "recipe.yaml:4: output: it would replace the float weights"),
    ({"output": "nowhere/out.safetensors"}, "recipe.yaml:4: output: there is no folder"),
    ({"model": "zoo"}, "recipe.yaml:1: model: 'zoo' is not of the form"),
    ({"model": "nothing.py:net"}, "recipe.yaml:1: model: there is no file"),
    ({"model": "no_such_package:net"}, "No module named 'no_such_package'"),
    ({"model": "zoo.py:ent"}, "zoo.py has no 'ent'; did you mean 'net'?"),
    ({"model": "zoo.py:batches"}, "gave a list"),
    ({"model": "zoo.py:quantized"}, "recipe.yaml:1: model: the model is quantized already"),
    ({"model": "zoo.py:failing"}, "zoo.py:failing failed with RuntimeError: no disk (in "),
    ({"data": None}, "recipe.yaml:1: data: op '0' has static activations"),
    ({"data": "zoo.py:nothing"}, "recipe.yaml:2: data: the calibration data is empty"),
    ({"data": "zoo.py:wrong_shape"}, "recipe.yaml:2: data: the model does not run on calibration batch 0"),
    ({"data": "zoo.py:some_then_failure"}, "recipe.yaml:2: data: zoo.py:some_then_failure failed with KeyError"),
    ({"capability": "nothing.yaml"}, "recipe.yaml:5: capability: no capability file"),
    ({"weights": "nothing.safetensors"}, "recipe.yaml:5: weights: there is no file"),
    ({"weights": "zoo.py"}, "cannot be read as safetensors"),
    ({"recover": "gtpq"}, "recipe.yaml:5: recover: recovery method 'gtpq' is unknown; did you mean 'gptq'?"),
    ({"recover": "[{gptq: {damp: 1}}]"}, "recipe.yaml:5: recover: recovery method 'gptq': unknown option 'damp'"),
    (
        {"recover": "[bias_correction, gptq]"},
        "recipe.yaml:5: recover: recovery methods: 'gptq' (rounding) comes after 'bias_correction'",
    ),
    ({"recover": "3"}, "recipe.yaml:5: recover: expected a name, a mapping, or a list of names and mappings, found 3"),
    ({"recover": "rotate"}, "recipe.yaml:5: recover: recovery method 'rotate' has no meaning for this model"),
    ({"seed": "x"}, "recipe.yaml:5: seed: expected a whole number, found 'x'"),
    ({"evaluate": "zoo.py:nothing"}, "recipe.yaml:5: evaluate: zoo.py:nothing is a list, not a function"),
    ({"evaluate": "zoo.py:failing"}, "recipe.yaml:5: evaluate: zoo.py:failing failed with TypeError"),
]


@pytest.mark.parametrize(("keys", "message"), WRONG, ids=[str(keys) for keys, _ in WRONG])
def test_a_wrong_recipe_is_one_message_with_its_line_and_no_checkpoint(folder, keys, message):
    result = quantize(folder, **keys)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("Error: ") >= 1
    assert "Traceback" not in result.stderr
    assert not list(folder.glob("*.safetensors*"))


def test_a_file_that_does_not_compile_is_told(folder):
    (folder / "broken.py").write_text("def net(:\n")
    result = quantize(folder, model="broken.py:net")
    assert result.exit_code == 2
    assert "recipe.yaml:1: model: importing" in result.stderr
    assert "SyntaxError: " in result.stderr
    assert "line 1" in result.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("0.bias"), "lacks tensors of the model: 0.bias"),
        (lambda state: state.update(extra=torch.ones(1)), "has tensors that the model has not: extra"),
        (lambda state: state.update({"0.bias": torch.ones(7)}), "does not fit the model"),
    ],
)
def test_weights_of_another_model_are_refused(folder, change, message):
    state = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    ).state_dict()
    change(state)
    save_file(state, folder / "weights.pt")
    result = quantize(folder, weights="weights.pt")
    assert result.exit_code == 2
    assert f"recipe.yaml:5: weights: {folder / 'weights.pt'} " in result.stderr
    assert message in result.stderr


def test_debug_shows_the_cause(folder):
    result = quantize(folder, "--debug", model="zoo.py:failing")
    assert result.exit_code == 2
    assert result.stderr.count("Traceback") == 2
    assert "RuntimeError" in result.stderr


def test_summary_prints_what_the_checkpoint_holds(folder):
    table = quantize(folder).stdout
    result = runner.invoke(app, ["summary", str(folder / "out.safetensors")])
    assert result.exit_code == 0
    assert table.startswith(result.stdout)


def test_summary_as_json_is_the_rows_and_totals(folder):
    quantize(folder)
    result = runner.invoke(app, ["summary", str(folder / "out.safetensors"), "--json"])
    report = json.loads(result.stdout)
    assert [row["weight_dtype"] for row in report["rows"]] == ["int4", "int4"]
    assert report["totals"]["params"] == 4 * 9 + 4 + 4 + 4 + 1440 + 10  # BatchNorm too


def test_a_damaged_checkpoint_is_refused(folder):
    quantize(folder)
    path = folder / "out.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    result = runner.invoke(app, ["summary", str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "damaged" in result.stderr


def test_what_is_wrong_with_recovery_is_told_with_its_line(folder):
    result = quantize(folder, recover="5")
    assert result.exit_code == 2
    assert "expected a name, a mapping, or a list" in result.stderr
    result = quantize(folder, resume="kept")
    assert result.exit_code == 2
    assert "resume: there is nothing to keep" in result.stderr
    (folder / "kept").write_text("a file")
    result = quantize(folder, recover="[bias_correction]", resume="kept")
    assert result.exit_code == 2
    assert "resume: " in result.stderr
    assert "kept cannot be used" in result.stderr
