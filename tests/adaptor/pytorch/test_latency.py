"""Latency, with a clock that tells what it is made to: how often it is asked, and what is added up."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from subbyte import OpConfig, TuneConfig
from subbyte.adaptor.pytorch.adaptor import PyTorchAdaptor
from subbyte.adaptor.pytorch.latency import latency_file, stopwatch
from subbyte.adaptor.pytorch.latency.latency_file import VARIABLE, LatencyFile, default_path
from subbyte.adaptor.pytorch.latency.stopwatch import Timing
from subbyte.capability import load_capability
from subbyte.cli.digits import DigitNet
from subbyte.config import PostTrainingQuantConfig
from subbyte.errors import CalibrationError
from subbyte.spec import OpKey


class Clock:
    """In the place of the stopwatch: each measurement runs once and takes a second more than the one before."""

    def __init__(self) -> None:
        self.measured = 0

    def __call__(self, repeat: Callable[[int], Any], device: torch.device) -> Timing:
        repeat(3)
        self.measured += 1
        return Timing(float(self.measured), 0.01 * self.measured)


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "latency.json"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stopwatch, "timing_of", made)
    return made


def tunable(model: nn.Module, data: Any) -> Any:
    return PyTorchAdaptor(load_capability("pytorch_cpu")).tunable(model.eval(), PostTrainingQuantConfig(), data)


def digits() -> Any:
    torch.manual_seed(0)
    return tunable(DigitNet(8), [torch.randn(4, 1, 8, 8)])


def narrow(model: Any, key: OpKey, bits: int = 4) -> OpConfig:
    found: Iterator[OpConfig] = (
        each for each in model.alternatives[key]
        if each.activation is not None and each.activation.dtype.bits == bits
        and (each.weight is None or each.weight.dtype.bits == bits)
    )  # fmt: skip
    return next(found)


def with_(model: Any, *keys: OpKey) -> TuneConfig:
    return TuneConfig({key: narrow(model, key) if key in keys else OpConfig() for key in model.alternatives})


class Twice(nn.Module):
    """Two equal layers, one of another shape, one that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three, self.four = (nn.Linear(8, width) for width in (8, 8, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(torch.relu(self.one(x)))
        result: Tensor = self.three(x) - self.four(x) + self.four(x + 1)
        return result


def test_equal_calls_are_measured_once_and_only_what_is_asked(clock: Clock) -> None:
    model = tunable(Twice(), [torch.randn(2, 8)])
    assert clock.measured == 0
    model.latency(TuneConfig({}))
    # The whole model; one layer of 8 by 8, one of 8 by 4, and the addition: x + 1 is none of two tensors.
    assert clock.measured == 4
    model.latency(TuneConfig({}))
    assert clock.measured == 4
    model.latency(with_(model, ("one", "Linear")))
    reference = 1 + 2  # the quantized model and its two layers; the caller reads the addition, which stays float
    assert clock.measured == 4 + reference + 1
    model.latency(with_(model, ("two", "Linear")))
    assert clock.measured == 4 + reference + 1


def test_a_layer_that_is_called_twice_counts_twice(clock: Clock) -> None:
    model = tunable(Twice(), [torch.randn(2, 8)])
    model.latency(TuneConfig({}))
    of_op = model._latency_of(1)._of_op
    once, twice = (of_op((name, "Linear"), OpConfig()) for name in ("three", "four"))
    assert twice == Timing(2 * once.seconds, 2 * once.spread)


def test_what_one_op_changes_does_not_hang_on_the_others(clock: Clock) -> None:
    model = digits()
    one, other = ("conv2", "Conv2d"), ("classifier", "Linear")
    none, first, second, both = (model.latency(with_(model, *keys)) for keys in ((), (one,), (other,), (one, other)))
    assert first != none
    assert both - second == pytest.approx(first - none)


def test_the_reference_is_predicted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ops float, and all quantized as in the reference: predicted is what was measured of the whole."""
    seconds = iter([50.0, *[1.0] * 5, *[2.0] * 5, 90.0])  # the whole, its ops; quantized ops, the whole
    monkeypatch.setattr(stopwatch, "timing_of", lambda repeat, device: Timing(next(seconds), 1.0))
    model = digits()
    assert model.latency(TuneConfig({})) == 50.0
    quantized = {key: next(each for each in found if not each.is_float) for key, found in model.alternatives.items()}
    assert model.latency(TuneConfig(quantized)) == pytest.approx(90.0)
    one = TuneConfig({("conv1", "Conv2d"): quantized["conv1", "Conv2d"]})
    assert model.latency(one) == pytest.approx(50 + (2 - 1) + (90 - 45 - 5 * 2) / 5)


def test_the_file_serves_the_next_search(clock: Clock) -> None:
    model = digits()
    config = with_(model, ("conv2", "Conv2d"))
    seconds, measured = model.latency(config), clock.measured
    again = digits()
    assert again.latency(config) == seconds
    assert clock.measured == measured


def test_the_file_of_another_machine_does_not(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    digits().latency(TuneConfig({}))
    measured = clock.measured
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    digits().latency(TuneConfig({}))
    assert clock.measured == 2 * measured
    kept = json.loads(default_path().read_text())["seconds"]
    assert len(kept) == 2  # both machines
    assert {len(each) for each in kept.values()} == {measured}


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1, "seconds": {}}', '{"format": 2, "seconds": {"here": 3}}',
                                     '{"format": 2, "seconds": {"here": {"op": ["fast"]}}}', "\x00"])  # fmt: skip
def test_a_damaged_file_is_a_warning(content: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(content)
    with pytest.warns(UserWarning, match=r"damaged.json holds no latencies that can be read .* measured anew"):
        file = LatencyFile(path, "here")
    assert file.get("op") is None
    with pytest.warns(UserWarning, match="measured anew"):
        file.add("op", Timing(2.0, 0.5))
    assert LatencyFile(path, "here").get("op") == Timing(2.0, 0.5)
    assert list(tmp_path.glob("damaged.json*")) == [path]


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    file = LatencyFile(tmp_path / "new", "here")
    (tmp_path / "new").mkdir()
    unread = pytest.warns(UserWarning, match="holds no latencies")
    with unread, pytest.warns(UserWarning, match=rf"latencies cannot be kept in .*; set {VARIABLE}"):
        file.add("op", Timing(2.0, 0.5))
    assert file.get("op") == Timing(2.0, 0.5)
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]


def test_processes_keep_what_others_add(tmp_path: Path) -> None:
    one, other = (LatencyFile(tmp_path / "latency.json", "here") for _ in range(2))
    one.add("a", Timing(1.0, 0.1))
    other.add("b", Timing(2.0, 0.2))
    LatencyFile(tmp_path / "latency.json", "there").add("a", Timing(3.0, 0.3))
    found = LatencyFile(tmp_path / "latency.json", "here")
    assert (found.get("a"), found.get("b")) == (Timing(1.0, 0.1), Timing(2.0, 0.2))


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_path() == tmp_path / "latency.json"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_path() == Path("/cache/subbyte/latency.json")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_path() == Path.home() / ".cache" / "subbyte" / "latency.json"


def test_what_makes_a_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor: 0\nmodel name\t: Some CPU\n")
    monkeypatch.setattr(latency_file, "_CPUINFO", tmp_path / "cpuinfo")
    threads, cpu = torch.get_num_threads(), torch.device("cpu")
    named = f"Some CPU, {subbyte.kernels.used_isa()}, threads: {threads}, subbyte {subbyte.__version__}, torch"
    assert latency_file.machine(cpu).startswith(named)
    monkeypatch.setattr(latency_file, "_CPUINFO", tmp_path / "none")
    assert latency_file.machine(cpu) != named


class Functions(nn.Module):
    """One of each kind of function, and modules of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.mix = nn.Linear(8, 8)
        self.memory = nn.LSTM(8, 8, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.mix(self.table(ids))
        y, _ = self.memory(x)
        y = F.scaled_dot_product_attention(x, y, x, is_causal=True)
        y = torch.cat([y, x @ x.transpose(1, 2) @ y], -1)
        y += F.gelu(y)
        result: Tensor = y.softmax(-1)
        return result


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_every_kind_of_op_runs_by_itself(mode: str, clock: Clock) -> None:
    torch.manual_seed(0)
    float_model = Functions()
    data = [torch.randint(10, (2, 5))]
    model = PyTorchAdaptor(load_capability("pytorch_cpu")).tunable(
        float_model, PostTrainingQuantConfig(approach=mode), data
    )
    before = {name: value.clone() for name, value in float_model.state_dict().items()}
    seen = set()
    for key, found in model.alternatives.items():
        quantized = [each for each in found if not each.is_float]
        if quantized:
            seen.add(key[1])
            assert model.latency(TuneConfig({key: quantized[0]})) > 0
    assert seen
    assert float_model.training  # as it was
    assert all(torch.equal(value, before[name]) for name, value in float_model.state_dict().items())


def test_whole_models_are_measured_as_they_are_used(clock: Clock) -> None:
    model = digits()
    config = with_(model, *model.alternatives)
    converted = model.quantize(config)
    kinds = [type(module) for module in converted.modules()]
    assert model.measured_latency(model.model) == 1.0
    assert model.measured_latency(converted) == 2.0
    assert [type(module) for module in converted.modules()] == kinds  # the copy ran on kernels


def test_more_samples_than_there_are(clock: Clock) -> None:
    model = digits()
    assert model.latency(TuneConfig({}), 4) > 0
    with pytest.raises(CalibrationError, match=r"latency of 5 samples at a time is asked for, .* has 4; give a larger"):
        model.latency(TuneConfig({}), 5)


def test_the_stopwatch_counts_one_call() -> None:
    told: list[int] = []
    timing = stopwatch.timing_of(lambda times: told.append(times), torch.device("cpu"))
    assert timing.seconds > 0
    assert timing.spread >= 0.01 * timing.seconds
    assert told[:3] == [1, 1, 1]  # to warm up
    assert len(told) == 3 + 51
    assert min(told[3:]) > 1
