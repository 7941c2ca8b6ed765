"""What is left alone, what is copied, what is stored: the float model, deepcopy, pickle, state_dict."""

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import subbyte
from networks import ResidualNet, ResNetCifar, randomized, seeded, tiny_transformer

X = seeded((2, 3, 7, 6))


class Noisy(nn.Module):
    """Draws random numbers, drops values, counts its forwards in a buffer, writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.drop, self.norm = nn.Dropout(), nn.BatchNorm1d(6)
        self.register_buffer("forwards", torch.zeros((), dtype=torch.long))
        self.fail_at = -1

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        x.add_(0.0 if self.training else 1.0)
        y = self.drop(self.norm(self.a(x))) + 0.0 * torch.rand(1)
        if 0 <= self.fail_at <= int(self.forwards):
            raise RuntimeError("out of luck")
        return y + self.b(x)


def everything(model: nn.Module) -> dict[str, Any]:
    """All that must not change: values, versions, identities, modes, classes, hooks."""
    state = {
        name: (id(t), t._version, t.detach().clone(), t.requires_grad)
        for name, t in model.state_dict(keep_vars=True).items()
    }
    return {
        "state": state,
        "modules": {
            name: (id(m), type(m), m.training, sorted(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks))
            for name, m in model.named_modules()
        },
        "random": torch.get_rng_state(),
    }  # fmt: skip


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["modules"] == after["modules"]
    assert torch.equal(before["random"], after["random"])
    assert before["state"].keys() == after["state"].keys()
    for name, (identity, version, value, grad) in before["state"].items():
        other = after["state"][name]
        assert (identity, version, grad) == (other[0], other[1], other[3]), name
        assert torch.equal(value, other[2]), name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("call", ["prepare", "quantize", "query"])
def test_float_model_and_data_stay_as_they_were(call: str, training: bool) -> None:
    model, x = Noisy().train(training), seeded((4, 6))
    model.drop.eval()  # a mode of its own
    before, data = everything(model), x.clone()
    if call == "query":
        subbyte.query_fw_capability(model, x)
    else:
        getattr(subbyte, call)(model, "w4a4", [x, x])
    assert_same(before, everything(model))
    assert torch.equal(x, data)


def test_float_model_stays_as_it_was_when_preparing_fails() -> None:
    model = Noisy()
    for batches, fail_at, config in [
        ([seeded((4, 6))], 1, "w4a4"), ([seeded((4, 6)), seeded((4, 5))], -1, "w4a4"),
        ([seeded((4, 6)), seeded((4, 6)) / 0], -1, "w4a4"), ([seeded((4, 6))], -1, "w99"), (iter([]), -1, "w4a4"),
    ]:  # fmt: skip
        model.fail_at = fail_at
        before = everything(model)
        with pytest.raises(subbyte.SubbyteError):
            subbyte.prepare(model, config, batches)
        if fail_at == 1:
            with pytest.raises(subbyte.CalibrationError, match="out of luck"):
                subbyte.query_fw_capability(model, batches)
        assert_same(before, everything(model))
    from torch.nn.modules import module

    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks


def test_prepared_keeps_modes_and_buffers() -> None:
    model = Noisy().train()
    model.drop.eval()
    prepared = subbyte.prepare(model, "w4a4", seeded((4, 6)))
    assert prepared.training
    assert not prepared.drop.training
    for (name, value), (other, copied) in zip(model.named_buffers(), _own_buffers(prepared), strict=True):
        assert name == other
        assert torch.equal(value, copied), name


def _own_buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(n, b) for n, b in model.named_buffers() if "quantizer" not in n]


@pytest.mark.parametrize("network", ["resnet", "bert", "sequential"])
def test_state_dict_has_the_float_keys_and_those_of_quantizers(network: str) -> None:
    model, batch = _network(network)
    prepared = subbyte.prepare(model, "w4a4", [batch])
    float_keys, keys = model.state_dict().keys(), prepared.state_dict().keys()
    assert float_keys <= keys
    assert all("quantizer" in key for key in keys - float_keys)
    assert [name for name, _ in prepared.named_parameters()] == [name for name, _ in model.named_parameters()]
    for name, value in model.state_dict().items():
        assert torch.equal(prepared.state_dict()[name], value), name


def _network(name: str) -> tuple[nn.Module, Any]:
    if name == "resnet":
        return randomized(ResNetCifar(8, 4)), seeded((2, 3, 16, 16))
    if name == "sequential":
        return randomized(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(80, 2))
        ), X
    return tiny_transformer("bert"), {"input_ids": torch.arange(10).view(2, 5)}


def test_prepared_state_dict_goes_back_and_forth() -> None:
    model, other = randomized(ResidualNet(), 1), randomized(ResidualNet(), 2)
    one, two = (subbyte.prepare(net, "w4a4", X * size) for net, size in ((model, 1), (other, 3)))
    two.load_state_dict(one.state_dict())
    with torch.no_grad():
        assert torch.equal(one(X), two(X))
    # and the float model's own state alone:
    result = two.load_state_dict(other.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert all("quantizer" in key for key in result.missing_keys)
    with torch.no_grad():
        assert torch.equal(two(X), subbyte.convert(two)(X))
        assert not torch.equal(two(X), one(X))


def test_a_sequential_has_only_its_own_layers() -> None:
    model, x = _network("sequential")
    quantized = subbyte.quantize(model, "w4a4", x)
    assert len(quantized) == len(model)
    assert [type(layer).__name__ for layer in quantized] == [type(layer).__name__ for layer in model]
    assert [name for name, _ in quantized.named_children()] == [name for name, _ in model.named_children()]


@pytest.mark.parametrize("kind", ["prepared", "converted"])
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("config", ["w4a4", "wternarya8", "w4a8:dynamic", "w4"])
def test_copies_are_independent_of_the_original(config: str, way: str, kind: str) -> None:
    model = randomized(ResidualNet())
    quantized = subbyte.prepare(model, config, X)
    quantized = subbyte.convert(quantized) if kind == "converted" else quantized
    with torch.no_grad():
        want = quantized(X)
        other = _copied(quantized, way)
        # Ruin the original: a copy whose hooks or quantizers close over it would notice.
        for tensor in (*quantized.parameters(), *quantized.buffers()):
            tensor.zero_()
        quantized.subbyte_state.run.phase = "bypass"
        assert torch.equal(other(X), want)
        assert torch.equal(_copied(other, way)(X), want)
    shared = {id(module) for module in quantized.modules()} & {id(module) for module in other.modules()}
    assert not shared
    assert other.subbyte_state is not quantized.subbyte_state
    assert subbyte.summary(other).rows[0]["name"] == "conv1"


def _copied(model: nn.Module, way: str) -> nn.Module:
    if way == "deepcopy":
        return copy.deepcopy(model)
    if way == "pickle":
        return pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class Added(nn.Module):
    """Calls functions between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)) + torch.sigmoid(x)


@pytest.mark.parametrize("place", ["root", "part"])
@pytest.mark.parametrize("config", ["w4a4", "w4a8:dynamic", "w4"])
def test_graph_modules_which_copy_themselves_in_their_own_way(place: str, config: str) -> None:
    traced, x = fx.symbolic_trace(randomized(Added())), seeded((4, 6))
    model = (traced if place == "root" else nn.Sequential(traced, nn.Linear(6, 2))).eval()
    data = x if config == "w4a4" else None
    prepared = subbyte.prepare(model, config, data)
    with torch.no_grad():
        want = prepared(x)
        for quantized in (prepared, subbyte.convert(prepared), subbyte.quantize(model, config, data)):
            copied = copy.deepcopy(quantized)
            assert torch.equal(quantized(x), want)
            for tensor in (*quantized.parameters(), *quantized.buffers()):
                tensor.zero_()
            assert torch.equal(copied(x), want)
            assert torch.equal(copy.deepcopy(copied)(x), want)
        assert not {id(module) for module in copied.modules()} & {id(module) for module in quantized.modules()}
        assert copied.subbyte_state is not quantized.subbyte_state
    assert subbyte.summary(copied).rows


def test_prepared_copy_of_a_hooked_model_calls_the_hook_once_on_the_copy() -> None:
    model = randomized(ResidualNet())
    seen: list[nn.Module] = []
    model.conv1.register_forward_hook(lambda module, args, output: seen.append(module))
    prepared = subbyte.prepare(model, "w4a4", X)
    seen.clear()
    prepared(X)
    assert seen == [prepared.conv1]


def test_hooks_that_compute_are_part_of_the_model() -> None:
    model = randomized(ResidualNet())
    model.conv1.register_forward_hook(lambda module, args, output: output + output.abs())
    model.conv2.register_forward_pre_hook(lambda module, args: (args[0] * args[0].sigmoid(),))
    prepared = subbyte.prepare(model, "w8a8", X)
    assert {"add", "mul", "sigmoid"} <= {row["type"] for row in subbyte.summary(prepared).rows}
    with torch.no_grad():
        want = model(X)
        assert (prepared(X) - want).abs().max() < 0.05 * want.abs().max()
        assert torch.equal(prepared(X), subbyte.convert(prepared)(X))


class Counted(nn.Linear):
    """A class that acts on being subclassed, as Hugging Face's checkpointing layers do."""

    subclasses: list[str] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Counted.subclasses.append(cls.__name__)


def test_swapping_is_no_subclassing_and_keeps_names_and_signatures() -> None:
    model = nn.Sequential(Counted(6, 6))
    quantized = subbyte.quantize(model, "w4a4", seeded((2, 6)))
    assert Counted.subclasses == []
    assert isinstance(quantized[0], Counted)
    assert type(quantized[0]).__name__ == "Counted"
    assert inspect.signature(quantized[0].forward) == inspect.signature(model[0].forward)
    net = randomized(ResidualNet())
    assert inspect.signature(subbyte.quantize(net, "w4a4", X).forward) == inspect.signature(net.forward)


@pytest.mark.parametrize("config", ["w4a4", "w4", "w4a8:dynamic"])
def test_slices_of_a_sequential_are_its_parts(config: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.GELU())
    prepared = subbyte.prepare(randomized(model), config, X)
    for quantized in (prepared, subbyte.convert(prepared)):
        with torch.no_grad():
            want = quantized(X)
            for cut in range(2, len(model)):
                first, rest = quantized[:cut], quantized[cut:]
                assert type(first) is nn.Sequential
                assert torch.equal(rest(first(X)), want)
                assert torch.equal(copy.deepcopy(first)(X), first(X))


def test_prepare_twice_gives_the_same_bits() -> None:
    model = randomized(ResidualNet())
    one, two = subbyte.prepare(model, "w3a3", X), subbyte.prepare(model, "w3a3", X)
    for (name, a), (other, b) in zip(one.state_dict().items(), two.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(a, b)
