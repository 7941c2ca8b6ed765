"""Any Python control flow: what one batch does not show a later one teaches, what none showed is refused."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import combining, randomized, seeded

POSITIVE = seeded((3, 6)).abs()


class Branches(nn.Module):
    """The sign of the data chooses the way; the ways have modules and functions of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        if float(x.sum()) > 0:
            return torch.tanh(self.left(y)) + y
        return self.norm(self.right(y)) * y


def rows(model: nn.Module) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in subbyte.summary(model).rows}


@pytest.mark.parametrize("first", [1, -1])
@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_a_way_that_a_later_batch_takes_is_learned(first: int, granularity: str) -> None:
    model = randomized(Branches())
    types = combining("w8a8")["op_type_dict"] | {"Linear": {"weight": {"granularity": [granularity]}}}
    conf = subbyte.PostTrainingQuantConfig(op_type_dict=types)
    data = [first * POSITIVE, first * POSITIVE, -first * POSITIVE]
    prepared = subbyte.prepare(model, conf, data)
    converted = subbyte.convert(prepared)
    assert {"stem", "left", "right", "add", "mul", "tanh"} <= rows(prepared).keys()
    assert all(row["activation_dtype"] == "uint8" for row in rows(prepared).values())
    for x in (POSITIVE, -POSITIVE):
        with torch.no_grad():
            want = model(x)
            assert (prepared(x) - want).abs().max() < 0.05 * want.abs().max()
            assert torch.equal(prepared(x), converted(x))
    assert prepared.subbyte_state.graph.ops["right"].norm == "norm"


def test_the_order_of_batches_does_not_name_ops_differently_from_run_to_run() -> None:
    model = randomized(Branches())
    one = subbyte.prepare(model, "w4a4", [POSITIVE, -POSITIVE])
    two = subbyte.prepare(model, "w4a4", [POSITIVE, -POSITIVE])
    assert list(one.state_dict()) == list(two.state_dict())


@pytest.mark.parametrize("kind", ["prepared", "converted", "loaded"])
def test_a_way_that_no_batch_took_is_refused(kind: str, tmp_path: Any) -> None:
    model = randomized(Branches())
    quantized = subbyte.prepare(model, "w4a4", POSITIVE)
    if kind != "prepared":
        quantized = subbyte.convert(quantized)
    if kind == "loaded":
        subbyte.save(quantized, tmp_path / "model.safetensors")
        quantized = subbyte.load(tmp_path / "model.safetensors", model)
    with torch.no_grad():
        want = quantized(POSITIVE)
        with pytest.raises(subbyte.UnseenOpError, match="right"):
            quantized(-POSITIVE)
        assert torch.equal(quantized(POSITIVE), want)


class OnlyFunctions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        if float(x.sum()) < 0:
            b = a * b
        if float(x.sum()) < -1000:
            b = F.gelu(b)
        return a + b


def test_a_shifted_sequence_of_functions_keeps_each_its_quantizer() -> None:
    """A counter of calls would give the add the quantizers of the mul."""
    model = randomized(OnlyFunctions())
    small, large = 0.1 * POSITIVE, -10 * POSITIVE
    prepared = subbyte.prepare(model, "w8a8", [small, large])
    only = subbyte.prepare(model, "w8a8", [small, 10 * POSITIVE])
    with torch.no_grad():
        for x in (small, large):
            want = model(x)
            assert (prepared(x) - want).abs().max() < 0.1 * model(large).abs().max()
        with pytest.raises(subbyte.UnseenOpError, match="mul"):
            only(large)
        with pytest.raises(subbyte.UnseenOpError, match="gelu"):
            prepared(-10000 * POSITIVE)


class Unrolled(nn.Module):
    """A loop whose length the data decides: one weight, one place."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x)
        while float(h.abs().max()) < 1 and len(x) < 10:
            h = torch.tanh(self.cell(h) + self.cell(x)) + 0.4
        return h


def test_a_loop_is_one_place_however_often_it_runs() -> None:
    model = randomized(Unrolled())
    prepared = subbyte.prepare(model, "w8a8", [POSITIVE])
    assert list(rows(prepared)) == ["cell", "add", "tanh"]
    assert len(prepared.cell.input_quantizers.by_site) == 2
    for size in (0.1, 1.0):
        with torch.no_grad():
            assert (prepared(size * POSITIVE) - model(size * POSITIVE)).abs().max() < 0.1


class Places(nn.Module):
    """Two adds on one line, a helper called from two places, a method, a lambda, a comprehension."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = (part(x) for part in self.parts)
        y = (a + 1000 * b) + (c + d)
        y = combine(y, a) + combine(a, b)
        join = lambda p, q: p + q  # noqa: E731
        return self.method(y, join(c, d))

    def method(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


def combine(a: Tensor, b: Tensor) -> Tensor:
    return a * b


def test_places_are_told_apart() -> None:
    prepared = subbyte.prepare(randomized(Places()), combining("w8a8"), POSITIVE)
    kinds = [row["type"] for row in rows(prepared).values()]
    assert kinds.count("add") == 6
    assert kinds.count("mul") == 2
    state = prepared.subbyte_state
    scales = {name: [float(state.quantizers[key].scale) for key in keys] for name, keys in state.input_keys.items()}
    assert scales["add"][1] > 100 * scales["add_1"][1]
    assert len(prepared.functional_scope.slots) >= 8


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.shared(x)
        y = self.shared(100 * y)
        return self.head(y)


def test_a_module_called_twice_has_one_weight_and_a_quantizer_for_each_call() -> None:
    model = randomized(Twice())
    prepared = subbyte.prepare(model, "w8a8", POSITIVE)
    quantizers = [slots[0] for slots in prepared.shared.input_quantizers.by_site.values()]
    assert len(quantizers) == 2
    assert float(quantizers[1].scale) > 10 * float(quantizers[0].scale)
    assert list(subbyte.weights(prepared)) == ["shared", "head"]
    with torch.no_grad():
        want = model(POSITIVE)
        assert (prepared(POSITIVE) - want).abs().max() < 0.05 * want.abs().max()
        assert torch.equal(prepared(POSITIVE), subbyte.convert(prepared)(POSITIVE))


class Tied(nn.Module):
    """One module under two names, one parameter in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.alias = self.first
        self.table, self.head = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.alias(self.first(self.table(tokens))))


@pytest.mark.parametrize("config", ["w4a8", "w4"])
def test_tied_weights(config: str, tmp_path: Any) -> None:
    model, tokens = randomized(Tied()), torch.arange(8).view(2, 4)
    prepared = subbyte.prepare(model, config, None if config == "w4" else [tokens])
    assert prepared.head.weight is prepared.table.weight
    assert prepared.alias is prepared.first
    converted = subbyte.convert(prepared)
    with torch.no_grad():
        assert torch.equal(prepared(tokens), converted(tokens))
        weights = subbyte.weights(converted)
        if weights["head"].spec == weights["table"].spec:
            assert weights["head"].packed.data_ptr() == weights["table"].packed.data_ptr()
        subbyte.save(converted, tmp_path / "tied.safetensors")
        assert torch.equal(subbyte.load(tmp_path / "tied.safetensors", model)(tokens), converted(tokens))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.one if float(x.sum()) > 0 else self.two)(self.body(x))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_head_found_later_is_a_last_layer_too(sign: int) -> None:
    data = [sign * POSITIVE, -sign * POSITIVE]
    quantized = subbyte.quantize(randomized(Heads()), "w2a2", data, first_last="int8")
    found = rows(quantized)
    assert {found[name]["weight_dtype"] for name in ("one", "two")} == {"int8"}
    assert all(found[name]["positions"] == ["last"] for name in ("one", "two"))


class Scaled(nn.Module):
    """What the add reads was made by functions that are no ops, of very different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, large: bool = True) -> Tensor:
        a, b = self.a(x), self.b(x)
        if large:
            return 100 * a + 100 * b
        return 0.01 * a + 0.01 * b


def test_values_made_on_different_ways_do_not_share_a_quantizer() -> None:
    model = randomized(Scaled())
    quantized = subbyte.quantize(model, "w8a8", [(POSITIVE, True), (POSITIVE, False)])
    with torch.no_grad():
        for large in (True, False):
            want = model(POSITIVE, large)
            assert (quantized(POSITIVE, large) - want).abs().max() < 0.05 * want.abs().max()


class EarlyExit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self.stem(x))
        return self.head(y) if float(x.sum()) > 0 else y.tanh()


def test_an_op_that_turns_out_to_be_last_is_no_silent_exception() -> None:
    model = randomized(EarlyExit())
    with pytest.raises(subbyte.ConfigError, match=r"'body' is last only .* first"):
        subbyte.quantize(model, "w2a2", [POSITIVE, -POSITIVE], first_last="int8")
    found = rows(subbyte.quantize(model, "w2a2", [-POSITIVE, POSITIVE], first_last="int8"))
    assert [found[name]["weight_dtype"] for name in ("stem", "body", "head")] == ["int8"] * 3


def test_the_path_of_a_dynamic_model_is_found_at_its_first_forward_also_after_a_failed_one() -> None:
    model = randomized(Branches())
    quantized = subbyte.quantize(model, "w4a4:dynamic")
    with torch.no_grad():
        with pytest.raises((RuntimeError, subbyte.SubbyteError)):
            quantized(seeded((3, 7)))
        want = subbyte.quantize(model, "w4a4:dynamic", POSITIVE)(POSITIVE)
        assert torch.equal(quantized(POSITIVE), want)
        assert not torch.equal(want, model(POSITIVE))
        assert torch.equal(quantized(POSITIVE), want)


def test_a_residual_add_in_a_loop_that_begins_at_the_input_is_quantized() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.relu(layer(x)) + x
            return x

    prepared = subbyte.prepare(randomized(Loop()), combining("w8a8"), torch.randn(4, 6))
    assert rows(prepared)["add"]["activation_dtype"] == "uint8"


class Refusing(nn.Module):
    """Adds, and raises where the first value is large."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) + self.linear(-x)
        if float(x.flatten()[0]) > 100:
            raise ValueError("too large")
        return y


class Around(nn.Module):
    """Goes on with functions of its own after another module's code has run."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Refusing()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x)) * self.inner(-x)


def test_functions_keep_their_scope_after_those_of_an_inner_module() -> None:
    model = randomized(Around())
    prepared = subbyte.prepare(model, "w8a8", [POSITIVE])
    converted = subbyte.convert(prepared)
    assert {"inner.add", "tanh", "mul"} <= rows(prepared).keys()
    with torch.no_grad():
        want = model(POSITIVE)
        assert (prepared(POSITIVE) - want).abs().max() < 0.05 * want.abs().max()
        assert not torch.equal(prepared(POSITIVE), want)
        assert torch.equal(prepared(POSITIVE), converted(POSITIVE))
        with pytest.raises(ValueError, match="too large"):
            prepared(POSITIVE + 200)
        assert torch.equal(prepared(POSITIVE), converted(POSITIVE))
    assert torch._C._len_torch_function_stack() == 0


class Refuses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        raise ValueError("not today") if y.shape[0] else y


class Catches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.refuses, self.linear = Refuses(), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        try:
            y = self.refuses(x)
        except ValueError:
            y = self.linear(x)
        return y * torch.tanh(y)


def test_an_exception_that_forward_catches_leaves_no_trace() -> None:
    model = randomized(Catches())
    prepared = subbyte.prepare(model, "w8a8", POSITIVE)
    assert {"linear", "refuses.linear", "tanh", "mul"} == rows(prepared).keys()
    with torch.no_grad():
        assert torch.equal(prepared(POSITIVE), subbyte.convert(prepared)(POSITIVE))


class Domains(nn.Module):
    """A BatchNorm for each domain after one convolution, or none; the convolution may run more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(3)])

    def forward(self, x: Tensor, domain: int, rounds: int = 1) -> Tensor:
        for _ in range(rounds):
            x = self.conv(x)
        return self.norms[domain](x) if domain < 2 else x


IMAGES = seeded((4, 3, 6, 6))


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_batch_norm_that_not_every_path_goes_through_runs_by_itself(order: Any, granularity: str) -> None:
    model = randomized(Domains())
    conf = subbyte.PostTrainingQuantConfig(op_type_dict={"Conv2d": {"weight": {"granularity": [granularity]}}})
    prepared = subbyte.prepare(model, conf, [(IMAGES, domain) for domain in order])
    converted = subbyte.convert(prepared)
    with torch.no_grad():
        for domain in order:
            want = model(IMAGES, domain)
            assert (prepared(IMAGES, domain) - want).abs().max() < 0.07 * want.abs().max()
            assert torch.equal(prepared(IMAGES, domain), converted(IMAGES, domain))


@pytest.mark.parametrize("kind", ["prepared", "converted", "loaded"])
@pytest.mark.parametrize("mode", ["w8a8", "w8a8:dynamic", "w8"])
def test_a_path_around_a_folded_batch_norm_is_refused(mode: str, kind: str, tmp_path: Any) -> None:
    model = randomized(Domains())
    quantized = subbyte.prepare(model, mode, [(IMAGES, 0)])
    if kind != "prepared":
        quantized = subbyte.convert(quantized)
    if kind == "loaded":
        subbyte.save(quantized, tmp_path / "model.safetensors")
        quantized = subbyte.load(tmp_path / "model.safetensors", model)
    with torch.no_grad():
        want = quantized(IMAGES, 0)
        for domain, rounds in ((1, 1), (2, 1), (0, 2)):
            with pytest.raises(subbyte.UnseenOpError, match="conv"):
                quantized(IMAGES, domain, rounds)
            assert torch.equal(quantized(IMAGES, 0), want)
