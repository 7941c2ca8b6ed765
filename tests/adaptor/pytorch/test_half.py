"""Ops in bf16 and fp16: cast in, computed there, cast back."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte import OpConfig, PostTrainingQuantConfig, TensorSpec, TuneConfig
from subbyte.adaptor.pytorch.adaptor import PyTorchAdaptor
from subbyte.adaptor.pytorch.half import in_half
from subbyte.capability import load_capability
from subbyte.errors import ConfigError, ModelError
from subbyte.tuning.sensitivity import parts

HYBRID = {
    "precision": "w4a8",
    "op_name_dict": {
        "first": "int8", "inner": "bf16", "act": "bf16", "add": "fp16", "wide": "fp16", "matmul": "bf16",
        "last": "fp32",
    },
}  # fmt: skip


class Hybrid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.inner_norm = nn.BatchNorm2d(8)
        self.narrow = nn.Linear(8, 8)
        self.act = nn.GELU()
        self.wide = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = x + F.relu(self.inner_norm(self.inner(x)))
        x = self.act(self.narrow(x.mean((2, 3))))
        x = torch.softmax(self.wide(x), -1)
        return self.last(torch.matmul(x, x.t()) @ x)


class Tied(nn.Module):
    def __init__(self, *, reads: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.table.weight
        self.reads = reads

    def forward(self, index: Tensor) -> Tensor:
        x = self.inner(self.table(index))
        return F.linear(x, self.table.weight) if self.reads else self.head(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


@pytest.fixture(scope="module")
def capability(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("capability") / "halves.yaml"
    path.write_text("extends: pytorch_cpu\nversion: {name: halves}\ncapabilities: {bf16: ['*'], fp16: ['*']}\n")
    return str(path)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return seeded((4, 3, 8, 8))


@pytest.fixture
def prepared(capability: str, images: Tensor) -> nn.Module:
    return subbyte.prepare(randomized(Hybrid()), HYBRID, images, capability=capability).eval()


def rows(model: nn.Module) -> dict[str, Any]:
    return {row["name"]: row for row in subbyte.summary(model).rows}


@pytest.mark.parametrize(("name", "kind"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_modules_are_those_of_the_type_itself(name: str, kind: torch.dtype, capability: str) -> None:
    for model, x in (
        (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)), seeded((3, 6))),
        (nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ConvTranspose2d(4, 2, 3)), seeded((2, 3, 9, 9))),
        (Recurrent(), seeded((2, 3, 4))),
    ):
        quantized = subbyte.quantize(randomized(model), name, x, capability=capability)
        expected = randomized(model).to(kind).eval()(x.to(kind))
        assert torch.equal(quantized(x), expected.float())


def test_functions_are_those_of_the_type_itself() -> None:
    x, y = seeded((3, 4)), seeded((3, 4), 1)
    a, b = x.bfloat16(), y.bfloat16()
    half = torch.bfloat16
    assert torch.equal(in_half(torch.add, (x, y), {"alpha": 2}, half), torch.add(a, b, alpha=2).float())
    assert torch.equal(in_half(torch.cat, ([x, y], 1), {}, half), torch.cat([a, b], 1).float())
    assert in_half(torch.matmul, (x.half(), y.t().half()), {}, half).dtype == torch.float16
    assert torch.equal(in_half(F.softmax, (a, -1), {"dtype": torch.float32}, half), torch.softmax(a, -1).float())
    expected = torch.matmul(a, b.t()).float()
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(in_half(torch.matmul, (x, y.t()), {}, half), expected)


@pytest.mark.parametrize("function", [torch.Tensor.add_, torch.Tensor.__imul__])
def test_what_writes_into_its_input_still_does(function: Any) -> None:
    x, y = seeded((3, 4)), seeded((3, 4), 1)
    expected = function(x.bfloat16(), y.bfloat16()).float()
    assert in_half(function, (x, y), {}, torch.bfloat16) is x
    assert torch.equal(x, expected)


def test_hybrid_prepared_is_converted_is_quantized(
    prepared: nn.Module, capability: str, images: Tensor, tmp_path: Path
) -> None:
    converted = subbyte.convert(prepared)
    assert set(Hybrid().state_dict()) <= set(prepared.state_dict())
    assert torch.equal(prepared(images), converted(images))
    quantized = subbyte.quantize(randomized(Hybrid()), HYBRID, images, capability=capability)
    assert torch.equal(quantized(images), converted(images))
    types = {name: module.weight.dtype for name, module in converted.named_children() if name in ("inner", "wide")}
    assert types == {"inner": torch.bfloat16, "wide": torch.float16}
    subbyte.save(converted, tmp_path / "model.safetensors")
    loaded = subbyte.load(tmp_path / "model.safetensors", Hybrid())
    assert torch.equal(loaded(images), converted(images))
    assert str(subbyte.summary(loaded)) == str(subbyte.summary(converted))


def test_hybrid_trains(prepared: nn.Module, images: Tensor) -> None:
    prepared.train()
    before = {name: parameter.detach().clone() for name, parameter in prepared.named_parameters()}
    optimizer = torch.optim.SGD(prepared.parameters(), lr=10.0)
    prepared(images).square().sum().backward()
    optimizer.step()
    still = [name for name, one in prepared.named_parameters() if torch.equal(one, before[name])]
    assert not still
    assert all(parameter.dtype == torch.float32 for parameter in prepared.parameters())
    prepared.eval()
    assert torch.equal(prepared(images), subbyte.convert(prepared)(images))


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning")
def test_copies_compile_casts_and_autocast(prepared: nn.Module, images: Tensor) -> None:
    expected = prepared(images)
    for model in (prepared, subbyte.convert(prepared)):
        assert torch.equal(copy.deepcopy(model)(images), expected)
        assert torch.equal(pickle.loads(pickle.dumps(model))(images), expected)
        compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(images), expected)
    converted = subbyte.convert(prepared)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(prepared(images), converted(images))
    for kind in (torch.bfloat16, torch.float16, torch.float64):
        one, other = (
            copy.deepcopy(prepared).to(kind)(images.to(kind)),
            copy.deepcopy(converted).to(kind)(images.to(kind)),
        )
        assert one.dtype == kind
        assert torch.equal(one, other)


def test_tied_weights_stay_one(capability: str, tmp_path: Path) -> None:
    index = torch.arange(6).reshape(2, 3)
    for reads in (False, True):
        model = randomized(Tied(reads=reads))
        prepared = subbyte.prepare(model, "bf16", index, capability=capability).eval()
        converted = subbyte.convert(prepared)
        assert torch.equal(prepared(index), converted(index))
        assert prepared(index).dtype == torch.float32
        assert converted.head.weight is converted.table.weight
        assert converted.table.weight.dtype == torch.bfloat16
        subbyte.save(converted, tmp_path / "tied.safetensors")
        assert torch.equal(subbyte.load(tmp_path / "tied.safetensors", Tied(reads=reads))(index), converted(index))


def test_refusals(capability: str, images: Tensor) -> None:
    index = torch.arange(6).reshape(2, 3)
    mixed = {"precision": "w8", "op_name_dict": {"table": "bf16", "head": "fp16"}}
    with pytest.raises(ConfigError, match="one weight precision"):
        subbyte.quantize(Tied(reads=True), mixed, index, capability=capability)
    two = OpConfig(weight=TensorSpec("bf16"), activation=TensorSpec("fp16"))
    with pytest.raises(ConfigError, match="'inner': an op in bf16 has all its tensors in bf16, and this one has fp16"):
        subbyte.quantize(Hybrid(), TuneConfig({("inner", "Conv2d"): two}), images, capability=capability)
    fields = {"weight": {"dtype": "int4"}, "activation": {"dtype": "bf16"}}
    with pytest.raises(ConfigError, match="has int4 too"):
        subbyte.quantize(
            Hybrid(), {"precision": "w4", "op_name_dict": {"inner": fields}}, images, capability=capability
        )
    with pytest.raises(ConfigError, match="bf16, which pytorch_cpu does not list for Conv2d"):
        subbyte.quantize(Hybrid(), "bf16", images)
    with pytest.raises(ModelError, match="max_norm"):
        subbyte.quantize(nn.Sequential(nn.Embedding(10, 8, max_norm=1.0)), "bf16", index, capability=capability)


def test_the_report_says_it(prepared: nn.Module) -> None:
    converted = subbyte.convert(prepared)
    for model in (prepared, converted):
        row = rows(model)["inner"]
        assert (row["weight_dtype"], row["activation_dtype"], row["bytes"]) == ("bf16", "bf16", 2 * 8 * 8 * 9)
        assert row["requested"] == row["realized"] == "bf16"
        assert row["kernel"] == "float: cast to bf16 and back"
        assert rows(model)["add"]["realized"] == "fp16"
        assert "inner (Conv2d): bf16" in subbyte.explain(model, "inner")
        assert subbyte.summary(model).totals["params_by_bits"]["w16"] == 8 * 8 * 9 + 8 * 8 + 8
    assert subbyte.summary(converted).totals["bytes"] == sum(
        tensor.nbytes for tensor in [*converted.parameters(), *converted.buffers()]
    )


@pytest.mark.parametrize("make", [Hybrid, Recurrent, Tied])
def test_trials_know_them(make: type[nn.Module], capability: str) -> None:
    x = {Hybrid: seeded((4, 3, 8, 8)), Recurrent: seeded((2, 3, 4)), Tied: torch.arange(6).reshape(2, 3)}[make]
    request = PostTrainingQuantConfig(approach="static" if make is Hybrid else "weight_only")
    model = PyTorchAdaptor(load_capability(capability)).tunable(randomized(make()), request, x)
    texts = {str(each) for found in model.alternatives.values() for each in found}
    assert {"bf16", "fp16", "fp32"} <= texts
    for name in ("bf16", "fp32", "fp16"):
        chosen = {
            key: next((each for each in found if str(each) == name and index % 2 == 0), found[0])
            for index, (key, found) in enumerate(model.alternatives.items())
        }
        config = TuneConfig(chosen)
        trial, quantized = model.apply(config), model.quantize(config)
        assert torch.equal(trial(x), quantized(x))
        assert model.size(config) == sum(tensor.nbytes for tensor in [*quantized.parameters(), *quantized.buffers()])


def test_errors_and_bit_operations_of_a_rung(capability: str) -> None:
    x = seeded((4, 6))
    model = PyTorchAdaptor(load_capability(capability)).tunable(
        nn.Sequential(nn.Linear(6, 4)), PostTrainingQuantConfig(), x
    )
    ((key, found),) = model.alternatives.items()
    half = next(each for each in found if str(each) == "bf16")
    assert list(parts(half)) == [half]
    error, none = model.output_error(key, half).squared, model.output_error(key, OpConfig()).squared
    assert 0.0 == none < error < 1e-4
    assert model.bops(TuneConfig({key: half})) == 24 * 16 * 16
    assert model.latency(TuneConfig({key: half}), 4) > 0.0
