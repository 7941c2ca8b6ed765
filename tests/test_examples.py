"""The scripts under examples/ do what they say, in fewer steps than by themselves."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import subbyte
from networks import seeded

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_digits_qat(capsys: pytest.CaptureFixture[str]) -> None:
    results = runpy.run_path(str(EXAMPLES / "digits_qat.py"))["run"](epochs=2)
    accuracies = {name: accuracy for name, (accuracy, _) in results.items()}
    assert min(accuracies.values()) > 70, accuracies
    body, ends = 3 * 32 * 32 * 9, 32 * 9 + 32 * 10
    assert results["fp32"][1] == 4 * (body + ends)
    for bits in (4, 2, 1):
        assert results[f"w{bits}a{bits}"][1] == body * bits // 8 + ends
    table = capsys.readouterr().out
    assert "w1a1" in table
    assert "signs of w1a1 changed" in table


# Lightning's own: it asks PyTorch, and an interface of C++, in ways that are on their way out.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*Consider decreasing the value of `log_every_n_steps`.*:UserWarning")
def test_lightning_qat() -> None:
    model, accuracy = runpy.run_path(str(EXAMPLES / "lightning_qat.py"))["run"](epochs=2)
    assert accuracy > 50
    assert {name: weight.spec.dtype.name for name, weight in subbyte.weights(model).items()} == {
        "0": "int8",
        "2": "bint1",
        "5": "bint1",
        "8": "int8",
    }


def test_the_lightning_callback_tells_progress_and_stops_what_fails() -> None:
    callback_class = runpy.run_path(str(EXAMPLES / "lightning_qat.py"))["QuantizationAware"]
    rules = {"types": {"bint1": {"weight": "ir_net"}}}
    prepared = subbyte.prepare_qat(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)),
        "wbint1a4",
        seeded((8, 4)),
        first_last="int8",
        training=rules,
    )
    module, callback = nn.ModuleDict({"model": prepared}), callback_class()
    callback.on_train_start(None, module)
    callback.on_train_epoch_start(SimpleNamespace(max_epochs=5, current_epoch=2), module)
    assert [float(x) for name, x in prepared.state_dict().items() if name.endswith("progress")] == [0.5]
    with pytest.raises(subbyte.TrainingError, match="the loss is not finite"):
        callback.on_train_batch_end(None, module, {"loss": torch.tensor(torch.nan)})


def test_trainer_qat() -> None:
    model, accuracies = runpy.run_path(str(EXAMPLES / "trainer_qat.py"))["run"](float_steps=40, steps=15)
    assert accuracies["w4a4, trained"] > 2 * 100 / 8, accuracies
    assert {weight.spec.dtype.name for weight in subbyte.weights(model).values()} == {"int4", "int8"}
