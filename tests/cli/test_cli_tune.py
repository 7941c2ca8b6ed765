"""`subbyte tune`: from a recipe to the best model and how it was found."""

import csv
import inspect
import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import subbyte
from subbyte.cli.main import app
from subbyte.cli.tune_recipe import TuneOptions

runner = CliRunner()

ZOO = """\
from pathlib import Path
import subbyte
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10))

def data():
    torch.manual_seed(1)
    return torch.randn(8, 16)

expected = net()(data()).detach()

def closeness(model):
    with Path(__file__).with_name("calls").open("a") as calls:
        calls.write("x")
    return 1 - float((model(data()) - expected).norm() / expected.norm())

def numpy_closeness(model):
    return 1 - abs(model(data()).numpy() - expected.numpy()).mean()

def interrupted_closeness(model):
    value = closeness(model)
    calls = Path(__file__).with_name("calls")
    if len(calls.read_text()) == 3:
        raise KeyboardInterrupt
    return value

def hopeless(model):
    return 1.0 if type(model[0]) is nn.Linear else 0.0

def failing(model):
    raise RuntimeError("no labels")

def loss(model, batch):
    return model(batch).square().mean()

text = "none"
"""
RECIPE = {
    "model": "zoo.py:net", "data": "zoo.py:data", "evaluate": "zoo.py:closeness", "output": "out.safetensors",
    "tune": "{max_loss: 0.1, max_trials: 5}", "recover": "[]",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "zoo.py").write_text(ZOO)
    return tmp_path


def write(folder, **keys):
    recipe = {key: value for key, value in (RECIPE | keys).items() if value is not None}
    (folder / "recipe.yaml").write_text("".join(f"{key}: {value}\n" for key, value in recipe.items()))
    return folder / "recipe.yaml"


def tune(folder, *options, **keys):
    """Run a recipe: the one above with some keys changed; None leaves one out."""
    return runner.invoke(app, ["tune", str(write(folder, **keys)), *map(str, options)])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10)).eval()


def test_it_writes_the_best_model_and_says_how_good_it_is(folder):
    pages = [folder / f"found.{ending}" for ending in ("html", "json", "csv")]
    result = tune(folder, *(word for page in pages for word in (f"--{page.suffix[1:]}", page)))
    assert result.exit_code == 0, result.stderr
    assert "criterion met: loss" in result.stdout
    assert "Subbyte tuning" in result.stdout
    for path in (folder / "out.safetensors", *pages):
        assert f"saved to {path}" in result.stdout
    found = json.loads(pages[1].read_text())
    assert found["criterion_met"]
    assert len(found["trials"]) <= 5
    loaded = subbyte.load(folder / "out.safetensors", network())
    summary = subbyte.summary(loaded)
    assert summary.totals["bytes"] == found["trials"][found["best"]]["objectives"]["size"] < 1800
    assert [row["realized"] for row in summary.rows] == [op["requested"] for op in found["ops"]]
    assert pages[0].read_text().startswith("<!DOCTYPE html>")
    assert len(list(csv.DictReader(pages[2].read_text().splitlines()))) == len(found["trials"])
    assert (folder / "subbyte-tuning.db").exists()  # beside the recipe, wherever the command runs
    assert "trials are kept in" in result.stderr
    assert "trials;" not in result.stderr  # no terminal, no progress


def test_an_evaluation_that_yields_scores_ends_early(folder):
    pages = [folder / f"found.{kind}" for kind in ("html", "json", "csv")]
    with (folder / "zoo.py").open("a") as file:  # the float model gets everything right, which is the first
        file.write(
            "\n\nmodels = []\n\n\ndef scores(model):\n    models.append(model)\n    for _ in range(40):\n"
            "        yield torch.ones(10) if len(models) == 1 else torch.zeros(10)\n"
        )
    result = tune(
        folder, "--html", pages[0], "--json", pages[1], "--csv", pages[2], evaluate="zoo.py:scores",
        tune="{early_stopping: 0.9, max_trials: 2, strategy: random}",
    )  # fmt: skip
    assert result.exit_code == 3, result.stderr
    trials = json.loads(pages[1].read_text())["trials"]
    lines = list(csv.DictReader(pages[2].read_text().splitlines()))
    assert [int(line["samples"]) for line in lines] == [trial["samples"] for trial in trials]
    assert all(0 < trial["samples"] < 400 for trial in trials)
    assert pages[0].read_text().count(f"(estimated from {trials[0]['samples']} samples)") == 2


def test_options_reach_the_search(folder):
    page = folder / "found.json"
    options = (
        "{max_loss: 0.5, criterion: absolute, strategy: random, max_trials: 3, objective: {size: 1, bops: 2}, "
        "budgets: {bops: 1e9}, storage: kept.db, study: mine, timeout: 600, loss_fn: 'zoo.py:loss'}"
    )
    result = tune(
        folder, "--json", page, tune=options, config="{op_type_dict: {Linear: {weight: {dtype: [int4, int8]}}}}"
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(page.read_text())
    assert (found["study"], found["strategy"], found["max_trials"]) == ("mine", "random", 3)
    assert found["criterion"] == {"max_loss": 0.5, "unit": "absolute", "confidence": 0.9}
    assert found["objective"] == {"size": 1.0, "bops": 2.0}
    assert found["budgets"] == {"bops": 1e9}
    assert (folder / "kept.db").exists()
    chosen = {config.split()[0] for trial in found["trials"] for config in trial["config"].values()}
    assert chosen <= {"w:int4", "w:int8", "fp32"}


def test_not_good_enough_is_exit_code_3_and_the_model_is_saved(folder):
    result = tune(folder, evaluate="zoo.py:hopeless", tune="{max_trials: 2}")
    assert result.exit_code == 3, result.stderr
    assert "criterion not met: loss 100 % of at most 1 %" in result.stdout
    assert (folder / "out.safetensors").exists()


def test_interrupted_it_says_how_to_go_on_and_does(folder):
    (folder / "calls").write_text("")
    result = tune(folder, evaluate="zoo.py:interrupted_closeness")
    assert result.exit_code == 130
    assert f"in {folder / 'subbyte-tuning.db'} keeps 1 trials; run it again to go on there" in result.stderr
    assert not (folder / "out.safetensors").exists()
    page = folder / "found.json"
    result = tune(folder, "--json", page, evaluate="zoo.py:interrupted_closeness")
    assert result.exit_code == 0, result.stderr
    trials = json.loads(page.read_text())["trials"]
    # The float model in each run, every trial once, and once more the one that was interrupted.
    assert len((folder / "calls").read_text()) == 2 + len(trials) + 1


def test_evaluations_need_no_gradients(folder):
    assert tune(folder, evaluate="zoo.py:numpy_closeness").exit_code == 0


WRONG = [
    ({"evaluate": None}, "the key 'evaluate' is missing; a recipe needs model, output, data and evaluate"),
    ({"data": None}, "the key 'data' is missing"),
    ({"resume": "kept"}, "unknown key 'resume'"),
    ({"max_loss": "0.1"}, "unknown key 'max_loss', which is one of the mapping 'tune': write it there"),
    ({"tunes": "{}"}, "recipe.yaml:7: unknown key 'tunes'; did you mean 'tune'?"),
    ({"tune": "fast"}, "recipe.yaml:5: tune: expected a mapping, found 'fast'"),
    ({"tune": "\n  max_loss: 0.1\n  stratgy: random"}, "recipe.yaml:7: unknown key 'stratgy'; did you mean 'strategy'"),
    ({"tune": "\n  strategy: sensitivty"}, "recipe.yaml:6: strategy: strategy 'sensitivty' is unknown; did you mean"),
    ({"tune": "\n  max_loss: -1"}, "recipe.yaml:6: max_loss: max_loss is -1"),
    ({"tune": "\n  max_loss: much"}, "recipe.yaml:6: max_loss: expected a number, found 'much'"),
    ({"tune": "\n  criterion: relativ"}, "recipe.yaml:6: criterion: expected relative or absolute, found 'relativ'"),
    ({"tune": "\n  objective: sise"}, "recipe.yaml:6: objective: objective 'sise' is unknown; did you mean 'size'?"),
    ({"tune": "\n  budgets: {size: 0}"}, "recipe.yaml:6: budgets: budgets: 'size' must be a positive number"),
    ({"tune": "\n  budgets: {size: lots}"}, "recipe.yaml:6: budgets: expected a mapping of objectives to numbers"),
    ({"tune": "\n  metric_weights: {a: 0}"}, "recipe.yaml:6: metric_weights: weights of metrics"),
    ({"tune": "\n  early_stopping: 99"}, "recipe.yaml:6: early_stopping: early_stopping is the confidence, from 0.5"),
    ({"tune": "\n  early_stopping: 0.9"}, "needs an evaluation that yields, for each batch"),
    ({"tune": "\n  max_trials: 0"}, "recipe.yaml:6: max_trials: expected a whole number above zero, found 0"),
    ({"tune": "\n  timeout: 0"}, "recipe.yaml:6: timeout: expected seconds, above zero, found 0"),
    ({"tune": "\n  loss_fn: zoo.py:text"}, "recipe.yaml:6: loss_fn: zoo.py:text is a str, not a function"),
    ({"tune": "\n  storage: mysql://nowhere"}, "recipe.yaml:5: tune: the study's storage mysql://nowhere cannot"),
    ({"config": "{op: {}}"}, "recipe.yaml:7: config: it says what every op gets, so there is nothing to tune"),
    ({"config": "{op_name_dict: {stem: w4}}"}, "recipe.yaml:7: config: op_name_dict['stem']"),
    ({"evaluate": "zoo.py:text"}, "recipe.yaml:3: evaluate: zoo.py:text is a str, not a function"),
    ({"evaluate": "zoo.py:failing"}, "RuntimeError: no labels (in "),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_told_with_its_line(folder, keys, said):
    result = tune(folder, **keys)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not (folder / "out.safetensors").exists()


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [("--html", "page.json", "does not end in .html"), ("--csv", "page.txt", "a tuning report is saved as"),
     ("--json", "none/page.json", "there is no folder")],
)  # fmt: skip
def test_reports_that_cannot_be_written_are_told_first(folder, option, name, said):
    result = tune(folder, option, folder / name)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (folder / "calls").exists()


def test_a_recipe_can_say_all_that_the_call_can():
    of_recipe = {"model", "data", "evaluate", "config", "first_last", "capability", "recover", "seed"}
    of_data = {"batch_size"}  # the function that `data` names gives batches
    assert set(inspect.signature(subbyte.tune).parameters) == of_recipe | of_data | set(TuneOptions.model_fields)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("rya", "distributed is 'shared', 'ray', or left out, not 'rya'; did you mean 'ray'"),
        ("{ray: {worker: 2}}", "'ray' has no setting 'worker'; did you mean 'workers'? (known: workers, cpus, gpus)"),
        ("{shared: 5}", "'shared' takes settings by name (known: stale"),
        ("{ray: {workers: 0}}", "workers must be a whole number above zero, not 0"),
    ],
)
def test_a_distribution_that_there_is_not_is_told_with_its_line(folder, given, said):
    result = tune(folder, tune=f"{{distributed: {given}}}")
    assert result.exit_code == 2
    assert "recipe.yaml:5: distributed: " in result.stderr
    assert said in " ".join(result.stderr.split())


def test_a_recipe_shares_a_study(folder):
    result = tune(folder, tune="{max_loss: 0.1, max_trials: 3, study: mine, distributed: {shared: {stale: 5}}}")
    assert result.exit_code == 0, result.stderr
    assert "study mine" in result.stdout


def test_defaults_are_those_of_the_call():
    of_call = {name: each.default for name, each in inspect.signature(subbyte.tune).parameters.items()}
    for name, field in TuneOptions.model_fields.items():
        assert (field.default or None) == (of_call[name] or None), name
