"""A copy of a model shares its functions: those that refer to parts of the original are refused, others work."""

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded

X = seeded((8, 6))


class Net(nn.Module):
    """Two layers, and something set on it that its forward may call."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.more: Any = None

    def both(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))

    def add_to(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output + self.b(args[0])

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if self.more is None else self.more(x)


def net() -> Net:
    model = randomized(Net())
    assert isinstance(model, Net)
    return model


def by_lambda(model: Net) -> None:
    model.more = lambda x: model.b(model.a(x))


def by_default(model: Net) -> None:
    model.more = lambda x, layer=model.b: layer(x)


def by_weight(model: Net) -> None:
    weight = model.a.weight
    model.more = lambda x: x @ weight


def in_a_list(model: Net) -> None:
    layers = [model.a, model.b]
    model.more = lambda x: layers[0](x)


def in_an_object(model: Net) -> None:
    model.more = SimpleNamespace(calls={"first": lambda x: model.a(x)})


def in_a_partial(model: Net) -> None:
    model.more = functools.partial(lambda x, scale: model.a(x) * scale, scale=2.0)


def through_a_function(model: Net) -> None:
    def inner(x: Tensor) -> Tensor:
        return model.a(x)

    model.more = lambda x: inner(x)


def in_a_hook(model: Net) -> None:
    model.a.register_forward_hook(lambda module, args, output: output + model.b(args[0]))


def in_a_pre_hook(model: Net) -> None:
    model.b.register_forward_pre_hook(lambda module, args: (model.a(args[0]),))


GLOBAL = net()


def global_hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output + GLOBAL.b(args[0])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (by_lambda, r"by_lambda.*'more' of the model itself refers to the model itself"),
        (by_default, r"'more'.*refers to module 'b'"),
        (by_weight, r"'more'.*refers to tensor 'a\.weight'"),
        (in_a_list, r"'more'.*refers to module '[ab]'"),
        (in_an_object, "'more'.*refers to the model"),
        (in_a_partial, "'more'.*refers to the model"),
        (through_a_function, "'more'.*refers to the model"),
        (in_a_hook, "'_forward_hooks' of module 'a' refers to the model"),
        (in_a_pre_hook, "'_forward_pre_hooks' of module 'b' refers to the model"),
    ],
)
def test_functions_that_refer_to_the_original(tmp_path: Path, change: Callable[[Net], None], match: str) -> None:
    plain, model = net(), net()
    change(model)
    for call in (subbyte.prepare, subbyte.quantize, subbyte.query_fw_capability):
        with pytest.raises(subbyte.ModelError, match=match):
            call(model, *([] if call is subbyte.query_fw_capability else ["w4a4"]), X)
    subbyte.save(subbyte.quantize(plain, "w4a4", X), tmp_path / "model.safetensors")
    with pytest.raises(subbyte.ModelError, match=match):
        subbyte.load(tmp_path / "model.safetensors", model)
    prepared: Any = subbyte.prepare(plain, "w4a4", X)
    change(prepared)
    with pytest.raises(subbyte.ModelError, match=match):
        subbyte.convert(prepared)


def test_a_hook_that_refers_to_a_global_model() -> None:
    GLOBAL.a.register_forward_hook(global_hook)
    with pytest.raises(subbyte.ModelError, match="'global_hook' in '_forward_hooks' of module 'a'"):
        subbyte.quantize(GLOBAL, "w4a4", X)


def by_method(model: Net) -> None:
    model.more = model.both


def by_partial(model: Net) -> None:
    model.more = functools.partial(model.both)


def by_hook_method(model: Net) -> None:
    model.a.register_forward_hook(model.add_to)


def by_argument(model: Net) -> None:
    other, scale = nn.Linear(6, 6), [2.0]
    model.a.register_forward_hook(lambda module, args, output: output * scale[0] + other(args[0]))


def compiled(model: Net) -> None:
    model.a.compile(backend="eager")


@pytest.mark.parametrize("change", [by_method, by_partial, by_hook_method, by_argument, compiled])
def test_functions_that_a_copy_has_of_its_own(change: Callable[[Net], None]) -> None:
    model = net()
    change(model)
    prepared = subbyte.prepare(model, "w8a8", X)
    with torch.no_grad():
        want, got = model(X), prepared(X)
        for tensor in model.parameters():
            tensor.zero_()
        assert torch.equal(prepared(X), got)
        assert torch.equal(subbyte.convert(prepared)(X), got)
        assert (got - want).norm() < 0.05 * want.norm()
