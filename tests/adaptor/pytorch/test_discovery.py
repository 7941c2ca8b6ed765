"""What one forward tells: names and types, first and last, depthwise, BatchNorm partners, costs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, ResNetCifar, UNet, randomized, seeded, tiny_transformer

X = seeded((2, 3, 8, 8))


def ops(model: nn.Module, x: Any = X) -> dict[str, Any]:
    return subbyte.prepare(randomized(model), "w8a8", [x]).subbyte_state.graph.ops


def at(model: nn.Module, position: str, x: Any = X) -> set[str]:
    return {name for name, op in ops(model, x).items() if position in op.positions}


def test_names_and_types_are_those_of_the_seed_documents() -> None:
    model = ResNetCifar(8, 4)
    capability = subbyte.query_fw_capability(model, X)
    keys = list(capability["opwise"])
    assert keys[:3] == [("conv1", "Conv2d"), ("layer1.0.conv1", "Conv2d"), ("layer1.0.conv2", "Conv2d")]
    assert keys[3] == ("layer1.0.add", "add")
    assert keys[-1] == ("linear", "Linear")
    assert set(capability["optypewise"]) == {"Conv2d", "add", "Linear"}
    assert not any("bn" in name for name, _ in keys)


def test_capability_of_a_model_without_data_knows_its_modules() -> None:
    capability = subbyte.query_fw_capability(ResNetCifar(8, 4))
    assert ("layer3.0.conv2", "Conv2d") in capability["opwise"]
    assert all(kind != "add" for _, kind in capability["opwise"])
    entries = capability["opwise"]["conv1", "Conv2d"]
    assert {entry["precision"] for entry in entries} >= {"int8", "int4"}
    (int4,) = [e for e in entries if e["precision"] == "int4" and e["quant_mode"] == "static"]
    assert "int4" in int4["weight"]["dtype"]


class Branched(nn.Module):
    """Two stems read the input, one through a pooling; two heads and a side output leave."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.head, self.side = nn.Linear(4, 2), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.left(x) + self.right(F.avg_pool2d(x, 3, 1, 1) / 2)
        y = F.relu(self.body(F.relu(y)))
        return {"side": [self.side(y).sigmoid()], "main": self.head(y.mean((2, 3)))}


def test_first_and_last_go_by_data_flow() -> None:
    assert at(Branched(), "first") == {"left", "right"}
    assert at(Branched(), "last") == {"head", "side"}
    assert at(UNet(4), "first") == {"down0.0"}
    assert at(UNet(4), "last") == {"head"}


class Skipping(nn.Module):
    """The input skips to the end, and so does the value of an early op."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.c(torch.cat([self.b(y), x], 1)[:, :3]) + y


def test_skips_of_input_and_output_count() -> None:
    assert at(Skipping(), "first") == {"a", "c"}
    assert at(Skipping(), "last") == {"a", "c"}


def test_a_single_op_is_first_and_last() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU())
    assert at(model, "first") == at(model, "last") == {"1"}
    root = nn.Linear(6, 4)
    assert ops(root, seeded((2, 6)))[""].positions == {"first", "last"}


@pytest.mark.parametrize("config", ["w8a8", "w8a8:dynamic", "w8"])
def test_the_model_itself_may_be_the_op(config: str) -> None:
    """It is called from wherever it is used, also from inside another model."""
    model, x = randomized(nn.Linear(6, 4)), seeded((2, 6))
    quantized = subbyte.quantize(model, config, x if config == "w8a8" else None)
    with torch.no_grad():
        want = quantized(x)
        assert not torch.equal(want, model(x))
        assert (want - model(x)).abs().max() < 0.05
        assert torch.equal(nn.Sequential(nn.Identity(), quantized)(x), want)
    assert subbyte.weights(quantized)[""].spec.dtype.name == "int8"


def test_depthwise_is_seen_and_can_be_constrained() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 4, 1)
    )
    assert [op.depthwise for op in ops(model).values()] == [False, True, False, False]
    capability = {
        "extends": "pytorch_cpu",
        "version": {"name": "dla"},
        "capabilities": {},
        "constraints": [{"where": {"op": "Conv2d", "depthwise": True}, "precision": "int8"}],
    }
    rows = subbyte.summary(
        subbyte.quantize(randomized(model), "w4a4", X, capability=subbyte.load_capability(capability))
    ).rows
    assert [row["weight_dtype"] for row in rows] == ["int4", "int8", "int4", "int4"]


def test_macs_are_for_one_sample() -> None:
    for batch in (1, 4):
        found = ops(ResidualNet(), seeded((batch, 3, 8, 8)))
        assert found["conv1"].macs == 64 * 6 * 3 * 9
        assert found["conv2"].macs == 64 * 6 * 6 * 9
        assert found["linear"].macs == 30


class Norms(nn.Module):
    def __init__(self, way: Callable[..., Any]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.other = nn.Conv2d(3, 4, 1)
        self.way = way

    def forward(self, x: Tensor) -> Any:
        return self.way(self, x)


def returned(m: Any, x: Tensor) -> Any:
    y = m.conv(x)
    return m.norm(y), y


def read_twice(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    return m.norm(y) + y


def read_by_a_method(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    return m.norm(y) * float(y.mean())


def conv_twice(m: Any, x: Tensor) -> Tensor:
    return m.norm(m.conv(x)) + m.conv(2 * x)


def norm_twice(m: Any, x: Tensor) -> Tensor:
    return m.norm(m.conv(x)) + m.norm(m.other(x))


def through_relu(m: Any, x: Tensor) -> Tensor:
    return m.norm(F.relu(m.conv(x)))


def written_after(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    y += 1.0
    return m.norm(y)


def viewed(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    z = m.norm(y)
    return z + y.detach()


@pytest.mark.parametrize(
    "way", [returned, read_twice, read_by_a_method, conv_twice, norm_twice, through_relu, written_after, viewed]
)
def test_batch_norm_is_not_folded_where_others_see_what_it_reads(way: Callable[..., Any]) -> None:
    model = randomized(Norms(way))
    prepared = subbyte.prepare(model, "w8a8", X)
    assert all(not op.norm for op in prepared.subbyte_state.graph)
    _assert_near(model, prepared)


@pytest.mark.parametrize(
    "way",
    [
        lambda m, x: m.norm(m.conv(x)),
        lambda m, x: F.relu_(m.norm(m.conv(x))),
        lambda m, x: (m.norm(m.conv(x)), m.other(x)),
    ],
)
def test_batch_norm_is_folded_where_it_alone_reads(way: Callable[..., Any]) -> None:
    model = randomized(Norms(way))
    prepared = subbyte.prepare(model, "w8a8", X)
    assert prepared.subbyte_state.graph.ops["conv"].norm == "norm"
    _assert_near(model, prepared)


def test_odd_batch_norms() -> None:
    """Without statistics it normalises by the batch, so it cannot fold; without affine it can."""
    for norm, folds in ((nn.BatchNorm2d(4, track_running_stats=False), False), (nn.BatchNorm2d(4, affine=False), True)):
        model = randomized(ResidualNet(4))
        model.bn1 = norm.eval()
        if folds:
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)
        prepared = subbyte.prepare(model, "w8a8", X)
        assert bool(prepared.subbyte_state.graph.ops["conv1"].norm) is folds
        _assert_near(model, prepared)


def _assert_near(model: nn.Module, prepared: nn.Module) -> None:
    with torch.no_grad():
        want, got, last = model(X), prepared(X), subbyte.convert(prepared)(X)
    for a, b, c in zip(*((y if isinstance(y, tuple) else (y,)) for y in (want, got, last)), strict=True):
        assert (a - b).abs().max() < 0.05 * a.abs().max()
        assert torch.equal(b, c)


def test_modules_that_never_run_are_quantized_all_the_same() -> None:
    model = randomized(Norms(lambda m, x: m.norm(m.conv(x))))
    prepared = subbyte.prepare(model, "w4a4", X)
    assert subbyte.weights(prepared)["other"].spec.dtype.name == "int4"
    with pytest.raises(subbyte.UnseenOpError, match="other"):
        prepared.other(X)


def test_a_function_is_not_taken_for_a_module_of_its_name() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.sigmoid = nn.Linear(6, 6), nn.Sigmoid()
            self.weight = nn.Parameter(torch.eye(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.sigmoid(torch.sigmoid(self.linear(x)))
            return nn.functional.linear(y, self.weight)

    x = seeded((3, 6))
    prepared = subbyte.prepare(randomized(Net()), "w8a8", x)
    names = {row["name"]: row["type"] for row in subbyte.summary(prepared).rows}
    assert names == {"linear": "Linear", "sigmoid": "Sigmoid", "sigmoid_1": "sigmoid", "linear_1": "linear"}
    with torch.no_grad():
        assert torch.equal(prepared(x), subbyte.convert(prepared)(x))


def test_a_mask_makes_no_layer_the_first() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y = self.two(torch.softmax(self.one(x) + mask, -1))
            return self.three(y + x)

    model, mask = randomized(Masked()), torch.zeros(3, 6)
    rows = {row["name"]: row for row in subbyte.summary(subbyte.quantize(model, "w8a8", [(seeded((3, 6)), mask)])).rows}
    assert [name for name, row in rows.items() if "first" in row["positions"]] == ["one", "three"]
    assert set(rows) == {"one", "two", "three", "softmax", "add_1"}  # the first add, of the mask, is no op


def test_masks_of_eager_attention_are_no_values_to_quantize() -> None:
    model = tiny_transformer("bert")
    model.config._attn_implementation = "eager"
    ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    quantized = subbyte.quantize(model, "w8a8", [{"input_ids": ids, "attention_mask": mask}])
    rows = {row["name"]: row for row in subbyte.summary(quantized).rows}
    assert not [name for name in rows if name.endswith("attention.self.add")]
    assert not [name for name, row in rows.items() if "first" in row["positions"] and row["type"] != "Embedding"]


@dataclass
class Boxed:
    """What a model takes or gives, as many do: PyTorch's own containers do not know it."""

    values: list[Tensor]
    around: list[Any] = field(default_factory=list)


class Unboxing(nn.Module):
    """A residual network around dataclasses, one of which holds itself."""

    def __init__(self, takes: bool, gives: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.takes, self.gives = takes, gives

    def forward(self, given: Any) -> Any:
        x = given.values[0] if self.takes else given
        y = self.c(self.b(self.a(x)) + x)
        boxed = Boxed([y])
        boxed.around.append(boxed)
        return {"boxed": boxed} if self.gives else y


@pytest.mark.parametrize("gives", [False, True])
@pytest.mark.parametrize("takes", [False, True])
def test_tensors_in_dataclasses_are_seen(takes: bool, gives: bool) -> None:
    x = seeded((16, 6))
    model = randomized(Unboxing(takes, gives))
    data = [(Boxed([x]),)] if takes else [(x,)]
    rows = subbyte.summary(subbyte.quantize(model, "w2a2", data, first_last="int8")).rows
    assert [(row["name"], row["weight_dtype"], row["activation_dtype"], row["macs"]) for row in rows] == [
        ("a", "int8", "uint8", 36), ("b", "int2", "uint2", 36), ("add", None, "uint8", 0), ("c", "int8", "uint8", 36),
    ]  # fmt: skip


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.5 * x)


def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy() * 2)


class OutOfSight(nn.Module):
    """A function that no function mode sees stands before the first layer, between two, and after the last."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.function = function
        self.constant = torch.ones(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.function(self.a(self.function(x)))
        h = (h + self.constant) @ h.t()
        return self.function(self.c(self.b(h + self.constant)))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("way", ["script", "vmap", "numpy"])
def test_what_comes_out_of_sight_is_shown_and_loses_no_position(way: str) -> None:
    function: Any = {"numpy": through_numpy, "vmap": torch.vmap(torch.tanh)}.get(way) or torch.jit.script(swish)
    model, x = randomized(OutOfSight(lambda value: function(value))), seeded((6, 6))
    quantized = subbyte.quantize(model, "w4a4", x, first_last="int8")
    rows = {row["name"]: row for row in subbyte.summary(quantized).rows if not row["name"].startswith("tanh")}
    assert {name: row["weight_dtype"] for name, row in rows.items() if row["weight_dtype"]} == {
        "a": "int8", "b": "int4", "c": "int8",
    }  # fmt: skip
    functions = {name: row["float_because"] for name, row in rows.items() if name not in ("a", "b", "c")}
    assert functions == dict.fromkeys(["add", "matmul", "add_1"], "it reads a tensor whose origin is not known")
    with torch.no_grad():
        assert torch.equal(quantized(x), subbyte.prepare(model, "w4a4", x, first_last="int8").eval()(x))


def test_constants_of_the_model_are_not_out_of_sight() -> None:
    found = ops(OutOfSight(torch.relu), seeded((6, 6)))
    assert not any(op.unfollowed for op in found.values())
