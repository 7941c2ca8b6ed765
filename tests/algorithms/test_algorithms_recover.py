"""Running methods: data, seeds, interruptions."""

import math
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import subbyte
from networks import ResidualNet, randomized, seeded, tiny_transformer
from subbyte import CalibrationError, CheckpointError, ConfigError, RecoveryError, RecoveryMethod
from subbyte.adaptor.pytorch.batch import Batch
from subbyte.algorithms import Stage, recover
from subbyte.algorithms.adaround import AdaRound
from subbyte.algorithms.reconstruct import Reconstruct

QUICK = Reconstruct(steps=5, batch_size=4)


@pytest.fixture
def model() -> nn.Module:
    return randomized(ResidualNet()).eval()


@pytest.fixture
def images() -> torch.Tensor:
    return seeded((16, 3, 6, 6))


def _output(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = model(x)
    return output


class Interrupted(RecoveryMethod):
    """Rounds every weight down, until it is stopped."""

    stage: ClassVar[Stage] = Stage.ROUNDING
    done: ClassVar[list[str]] = []
    stop_at: ClassVar[int] = 2

    def units(self, model: Any) -> list[str]:
        return list(model.ops)

    def apply(self, model: Any, unit: str, generator: torch.Generator) -> None:
        if len(self.done) == self.stop_at:
            raise KeyboardInterrupt
        self.done.append(unit)
        op = model.ops[unit]
        op.write_weight(op.quantized() + torch.rand(op.weight.shape, generator=generator) * 1e-9)
        op.shift_output(torch.ones(op.handler.output_channels(op.module)))


subbyte.register_algorithm("test_interrupted")(Interrupted)


def test_float_model_and_random_state_are_untouched(model: nn.Module, images: torch.Tensor) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    subbyte.quantize(model, "w3a4", images, recover=[QUICK])
    assert torch.equal(torch.rand(4), expected)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_summary_tells_what_is_left_of_float_weights(model: nn.Module, images: torch.Tensor) -> None:
    recovered = subbyte.quantize(model, "w3a4", images, recover=["gptq"])
    rows = {row["name"]: row for row in subbyte.summary(recovered).rows if row["weight_sqnr"] is not None}
    for name, weight in subbyte.weights(recovered).items():
        own = model.get_submodule(name).weight.detach()  # type: ignore[union-attr,operator]
        expected = 10 * math.log10(own.square().sum() / (own - weight.dequantize()).square().sum())
        assert rows[name]["weight_sqnr"] == pytest.approx(expected, abs=1e-3)


def test_same_seed_same_model(model: nn.Module, images: torch.Tensor) -> None:
    outputs = []
    for seed in (0, 0, 1):
        torch.rand(5)  # whatever ran before
        outputs.append(_output(subbyte.quantize(model, "w2a4", images, recover=[QUICK], seed=seed), images))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_data_may_be_an_iterator_that_ends(model: nn.Module, images: torch.Tensor) -> None:
    once = subbyte.quantize(model, "w3a4", (part for part in images.split(8)), recover=[QUICK])
    listed = subbyte.quantize(model, "w3a4", images.split(8), recover=[QUICK])
    assert torch.equal(_output(once, images), _output(listed, images))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "'reconstruct' needs calibration data"),
        (torch.rand(4, 3, 6, 6), "4 calibration samples are too few"),
        ([(torch.rand(8, 3, 6, 6), torch.zeros(8))], "of .input, label. pairs give the inputs alone"),
    ],
)
def test_bad_data(model: nn.Module, data: Any, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        subbyte.quantize(model, "w4a8" if data is not None else "w4", data, recover=[QUICK])


def test_nothing_to_recover(model: nn.Module, images: torch.Tensor) -> None:
    with pytest.raises(RecoveryError, match=r"there is nothing to recover: no op of this model is quantized"):
        subbyte.quantize(model, "fp32", images, recover=[QUICK])


def test_bad_seed_and_folder(model: nn.Module, images: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"seed: a whole number of 0 or more is expected, not 'x'"):
        subbyte.quantize(model, "w4a8", images, recover=[QUICK], seed="x")  # type: ignore[arg-type]
    for call in (subbyte.quantize, subbyte.prepare):
        with pytest.raises(RecoveryError, match=r"no recovery method is asked for"):
            call(model, "w4a8", images, resume=tmp_path)


def test_samples_that_are_all_the_same(model: nn.Module) -> None:
    for value in (0.0, 1.0):
        with pytest.raises(CalibrationError, match=r"all calibration samples are the same"):
            subbyte.quantize(model, "w4a8", torch.full((16, 3, 6, 6), value), recover=[QUICK])


def test_an_op_without_meaning_is_refused_or_passed_over() -> None:
    model = randomized(nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 4))).eval()
    ids = torch.arange(20).reshape(10, 2)
    with pytest.raises(ConfigError, match=r"'reconstruct' has no meaning for op '0' .Embedding.*unsupported"):
        subbyte.quantize(model, "w3", ids, recover=[QUICK])
    skipping = subbyte.quantize(model, "w3", ids, recover=[{"reconstruct": {"steps": 5, "unsupported": "skip"}}])
    plain = subbyte.quantize(model, "w3", ids)
    assert torch.equal(subbyte.weights(skipping)["0"].codes, subbyte.weights(plain)["0"].codes)
    only_tables = randomized(nn.Sequential(nn.Embedding(20, 8))).eval()
    with pytest.raises(ConfigError, match=r"no meaning for any op"):
        subbyte.quantize(only_tables, "w3", ids, recover=[{"reconstruct": {"unsupported": "skip"}}])


class TestInterrupted:
    @pytest.fixture(autouse=True)
    def fresh(self) -> None:
        Interrupted.done.clear()
        Interrupted.stop_at = 2

    def _quantize(self, model: nn.Module, x: torch.Tensor, **options: Any) -> nn.Module:
        return subbyte.quantize(model, "w4a8", x, recover=["test_interrupted"], **options)

    def test_goes_on_where_it_was(self, model: nn.Module, images: torch.Tensor, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt) as interrupt:
            self._quantize(model, images, resume=tmp_path / "run")
        assert "go on after 2 units" in interrupt.value.__notes__[0]
        first, Interrupted.stop_at = list(Interrupted.done), 99
        resumed = self._quantize(model, images, resume=tmp_path / "run")
        assert Interrupted.done[:2] == first
        assert len(Interrupted.done) == len(set(Interrupted.done))  # none was done twice
        Interrupted.done.clear()
        whole = self._quantize(model, images)
        assert torch.equal(_output(resumed, images), _output(whole, images))
        assert {name: tensor.shape for name, tensor in resumed.state_dict().items()} == {
            name: tensor.shape for name, tensor in whole.state_dict().items()
        }

    def test_without_a_folder_says_how(self, model: nn.Module, images: torch.Tensor) -> None:
        with pytest.raises(KeyboardInterrupt) as interrupt:
            self._quantize(model, images)
        assert "give resume='FOLDER'" in interrupt.value.__notes__[0]

    def test_a_folder_of_another_run(self, model: nn.Module, images: torch.Tensor, tmp_path: Path) -> None:
        Interrupted.stop_at = 99
        self._quantize(model, images, resume=tmp_path)
        with pytest.raises(CheckpointError, match=r"units of another run .other seed;"):
            self._quantize(model, images, resume=tmp_path, seed=1)
        with pytest.raises(CheckpointError, match=r"other start"):
            self._quantize(randomized(ResidualNet(), 5).eval(), images, resume=tmp_path)
        with pytest.raises(CheckpointError, match=r"other start"):
            self._quantize(model, images + 1, resume=tmp_path)

    def test_a_damaged_unit(self, model: nn.Module, images: torch.Tensor, tmp_path: Path) -> None:
        Interrupted.stop_at = 99
        self._quantize(model, images, resume=tmp_path)
        unit = next(tmp_path.glob("*.safetensors"))
        unit.write_bytes(unit.read_bytes()[:40])
        with pytest.raises(CheckpointError, match=r"is damaged .*remove it"):
            self._quantize(model, images, resume=tmp_path)

    def test_units_that_are_not_of_this_model(self, model: nn.Module, images: torch.Tensor, tmp_path: Path) -> None:
        Interrupted.stop_at = 99
        self._quantize(model, images, resume=tmp_path)
        first, second, *_ = sorted(tmp_path.glob("*.safetensors"))
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        with pytest.raises(CheckpointError, match=r"is of unit .* not"):
            self._quantize(model, images, resume=tmp_path)
        with safe_open(second, "pt") as file:
            metadata = file.metadata()
        first.write_bytes(content)
        for name, shape in (("nothing.weight", (3,)), (f"{next(iter(model.state_dict()))}", (1, 2, 3))):
            save_file({name: torch.ones(shape)}, second, metadata)
            with pytest.raises(CheckpointError, match=r"is no tensor of this model"):
                self._quantize(model, images, resume=tmp_path)
        (tmp_path / "methods.json").write_text('[{"nothing": {}}]')
        with pytest.raises(CheckpointError, match=r"methods.json is damaged"):
            self._quantize(model, images, resume=tmp_path)
        (tmp_path / "run.json").write_text("[]")
        with pytest.raises(CheckpointError, match=r"run.json is not what was written there"):
            self._quantize(model, images, resume=tmp_path)

    def test_a_folder_that_cannot_be(self, model: nn.Module, images: torch.Tensor, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match=r"cannot be used"):
            self._quantize(model, images, resume=tmp_path / "file" / "run")


def test_reconstruction_resumed_is_the_same(model: nn.Module, images: torch.Tensor, tmp_path: Path) -> None:
    whole = subbyte.quantize(model, "w2a4", images, recover=[QUICK], resume=tmp_path)
    units = sorted(tmp_path.glob("*.safetensors"))
    units[0].unlink()
    again = subbyte.quantize(model, "w2a4", images, recover=[QUICK], resume=tmp_path)
    assert torch.equal(_output(again, images), _output(whole, images))


@pytest.mark.parametrize(
    ("network", "methods"),
    [
        ("residual", ["equalize", "clip", "gptq", "bias_correction"]),
        ("residual", ["clip", QUICK, "batch_norm"]),
        ("llama", ["rotate", "gptq"]),
        ("gpt2", ["awq", "hqq"]),
    ],
)
def test_goes_on_after_every_unit(network: str, methods: list[Any], tmp_path: Path) -> None:
    is_image = network == "residual"
    model = randomized(ResidualNet()).eval() if is_image else tiny_transformer(network).eval()
    generator = torch.Generator().manual_seed(0)
    x = seeded((16, 3, 6, 6)) if is_image else torch.randint(0, 50, (16, 6), generator=generator)
    asked = [each if isinstance(each, Reconstruct) else {each: {"unsupported": "skip"}} for each in methods]

    def state(**options: Any) -> dict[str, torch.Tensor]:
        return dict(subbyte.quantize(model, "w3a4", x, recover=asked, **options).state_dict())

    whole = state(resume=tmp_path / "whole")
    units = sorted((tmp_path / "whole").glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    for count in range(0, len(units), max(1, len(units) // 2)):
        shutil.copytree(tmp_path / "whole", tmp_path / str(count))
        for later in units[count:]:
            (tmp_path / str(count) / later.name).unlink()
        again = state(resume=tmp_path / str(count))
        assert again.keys() == whole.keys()
        assert all(torch.equal(again[name], whole[name]) for name in whole)


def test_a_block_that_does_not_fit_in_memory(
    model: nn.Module, images: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    9 kB\n")
    monkeypatch.setattr("subbyte.adaptor.pytorch.prepared.memory._MEMINFO", tmp_path / "meminfo")
    with pytest.raises(CalibrationError, match=r"takes 0.0 GiB, and 0.0 GiB are free; give fewer samples"):
        subbyte.quantize(model, "w3a4", images, recover=[QUICK])


class Deciding(nn.Module):
    """Runs its second layer once more where the first gives large values."""

    limit = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        for _ in range(1 + int(y.abs().max() > self.limit)):
            y = self.again(y)
        return y


@pytest.mark.parametrize("method", ["reconstruct", "clip"])
def test_calls_that_hang_on_quantized_values_are_refused(method: str) -> None:
    model, x = randomized(Deciding()), seeded((32, 8))
    with torch.no_grad():
        largest = [float(net.first(x).abs().max()) for net in (model, subbyte.prepare(model, "w2a8", x))]
    model.limit = sum(largest) / 2
    with pytest.raises(RecoveryError, match=r"'again' is called more often in the .* model.*op_name_dict"):
        subbyte.prepare(model, "w2a8", x, recover=[method])


def test_a_check_before_each_unit_can_end_a_recovery(model: nn.Module, images: torch.Tensor) -> None:
    prepared = subbyte.prepare(model, "w4a8", images)
    names = iter(range(2))

    def check() -> None:
        if next(names, None) is None:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        recover(prepared, [Counting()], [Batch.of(images)], before_unit=check)
    assert Counting.done == 2


def test_quick_takes_the_cheaper_form() -> None:
    assert Reconstruct().quick() == Reconstruct(steps=25)
    assert Reconstruct(steps=5).quick() == Reconstruct(steps=5)
    assert AdaRound().quick() == AdaRound(steps=100)


class Counting(RecoveryMethod):
    """Counts the units that it works on."""

    stage: ClassVar[Stage] = Stage.ROUNDING
    done: ClassVar[int] = 0

    def units(self, model: Any) -> list[str]:
        return list(model.ops)

    def apply(self, model: Any, unit: str, generator: torch.Generator) -> None:
        Counting.done += 1
