"""Functions as ops: what they compute, what of them is quantized, what stays float."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from integer_oracle import codes_and_params
from torch import Tensor, nn

import subbyte
from networks import combining, randomized, seeded

FLOAT = {"activation": {"dtype": ["fp32"]}}


class Two(nn.Module):
    """Two linear ops (so that the values are worth quantizing), then any function of both."""

    def __init__(self, function: Callable[..., Tensor], size: int = 6) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(size, size), nn.Linear(size, size)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.a(x), self.b(x))


def add_(a: Tensor, b: Tensor) -> Tensor:
    return a.add_(b)


def iadd(a: Tensor, b: Tensor) -> Tensor:
    a += b
    return a


def imul(a: Tensor, b: Tensor) -> Tensor:
    a *= b
    return a


def run(function: Callable[..., Tensor], x: Tensor, config: str = "w8a8") -> tuple[nn.Module, list[Tensor], Tensor]:
    """The converted model, (q - z) * s of each input of its last op, and its output."""
    model = randomized(Two(function))
    ready = subbyte.prepare(model, combining(config), x)
    quantized = subbyte.convert(ready)
    with torch.no_grad():
        output = quantized(x)
        assert torch.equal(ready(x), output)
        captured: list[Tensor] = []
        hooks = [
            m.register_forward_hook(lambda m, i, o: captured.append(o.clone())) for m in (quantized.a, quantized.b)
        ]
        quantized(x)
        for hook in hooks:
            hook.remove()
    op = [op for op in ready.subbyte_state.graph if op.kind == "function"][-1]
    keys = ready.subbyte_state.input_keys[op.name]
    values = []
    for index, source in enumerate(captured):
        quantizer = ready.subbyte_state.quantizers[keys[min(index, len(keys) - 1)]]
        grid, scale = codes_and_params(source, quantizer)
        values.append(grid.float() * scale)
    return quantized, values, output


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (torch.add, torch.add), (lambda a, b: a + b, torch.add), (iadd, torch.add), (add_, torch.add),
        (lambda a, b: torch.add(a, b, alpha=3), lambda a, b: a + 3 * b),
        (lambda a, b: a.add(other=b), torch.add), (lambda a, b: torch.add(input=a, other=b), torch.add),
        (lambda a, b: a * b, torch.mul), (imul, torch.mul), (torch.multiply, torch.mul),
        (lambda a, b: torch.cat([a, b], -1), lambda a, b: torch.cat([a, b], -1)),
        (lambda a, b: torch.cat(tensors=(b, a), dim=0), lambda a, b: torch.cat([b, a])),
        (lambda a, b: torch.stack([a, b], dim=1), lambda a, b: torch.stack([a, b], 1)),
        (lambda a, b: torch.hstack([a, b]), lambda a, b: torch.cat([a, b], 1)),
        (lambda a, b: torch.vstack(tensors=[a, b]), lambda a, b: torch.cat([a, b])),
        (lambda a, b: torch.column_stack((a, b)), lambda a, b: torch.cat([a, b], 1)),
    ],
)  # fmt: skip
def test_elementwise_functions_meet_quantized_inputs(function: Any, reference: Any) -> None:
    _, (a, b), output = run(function, seeded((5, 6)), "w8a4")
    torch.testing.assert_close(output, reference(a, b), rtol=0, atol=1e-6)


def test_add_of_default_precision_is_eight_bit() -> None:
    quantized, (a, b), output = run(torch.add, seeded((5, 6)), "w2a2")
    assert torch.equal(output, a + b)
    row = next(row for row in subbyte.summary(quantized).rows if row["name"] == "add")
    assert row["activation_dtype"] == "uint8"


@pytest.mark.parametrize(
    "spelling",
    [
        torch.matmul,
        lambda a, b: a @ b,
        torch.bmm,
        lambda a, b: a.matmul(other=b),
        lambda a, b: torch.bmm(a, mat2=b),
        lambda a, b: torch.matmul(input=a, other=b),
        torch.linalg.matmul,
    ],
)
@pytest.mark.parametrize("config", ["w8a8", "w4a3", "w1a1"])
def test_matmul_is_integers_first(spelling: Any, config: str) -> None:
    x = seeded((2, 6, 6))
    model = randomized(Two(spelling))
    ready = subbyte.prepare(model, config, x)
    quantized, state = subbyte.convert(ready), ready.subbyte_state
    captured: list[Tensor] = []
    for module in (quantized.a, quantized.b):
        module.register_forward_hook(lambda m, i, o: captured.append(o.clone()))
    with torch.no_grad():
        output = quantized(x)
        assert torch.equal(output, ready(x))
    (ga, sa), (gb, sb) = (
        codes_and_params(value, state.quantizers[key])
        for value, key in zip(captured, state.input_keys["matmul"], strict=True)
    )
    assert torch.equal(output, (ga @ gb).float() * (sa * sb))


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (lambda a, b: torch.mv(a, vec=b[0]), lambda a, b: a @ b[0]),
        (lambda a, b: a[0].dot(tensor=b[1]), lambda a, b: a[0] @ b[1]),
        (lambda a, b: torch.vdot(a[0], b[1]), lambda a, b: a[0] @ b[1]),
    ],
)
def test_products_of_vectors_are_matmul(function: Any, reference: Any) -> None:
    x = seeded((6, 6))
    spelt, plain = (subbyte.quantize(randomized(Two(way)), "w4a4", x) for way in (function, reference))
    (row,) = [row for row in subbyte.summary(spelt).rows if row["type"] == "matmul"]
    assert row["activation_dtype"] == "uint4"
    with torch.no_grad():
        assert torch.equal(spelt(x), plain(x))


@pytest.mark.parametrize(
    ("function", "macs"),
    [
        (torch.inner, 6 * 6 * 6),
        (lambda a, b: torch.tensordot(a, b.T, 1), 6 * 6 * 6),
        (lambda a, b: torch.tensordot(a, b, 2), 6 * 6),
        (lambda a, b: torch.linalg.vecdot(a, b[:1]), 6 * 6),
        (lambda a, b: torch.linalg.multi_dot([a[0], b, a[:, :2]]), 6 * 6 + 6 * 2),
        (lambda a, b: torch.linalg.multi_dot([a[:, :1], b[:1], a, b[:, 0]]), 6 * 6 + 6 + 6),
        (lambda a, b: torch.addbmm(torch.zeros(3, 2), a.view(2, 3, 6), b[:4].view(2, 6, 2)), 2 * 3 * 6 * 2),
        (lambda a, b: a[0].addmv_(a, b[0]), 6 * 6),
        (lambda a, b: torch.conv_tbc(a.view(2, 3, 6), b.view(1, 6, 6), b[0]), 6 * 6 * 6),
        (torch.kron, 0),
        (lambda a, b: torch.outer(a[0], b[0]), 0),
        (lambda a, b: torch.addr(a, a[0], b[0]), 0),
    ],
)  # fmt: skip
def test_products_that_stay_float_are_shown_with_their_costs(function: Any, macs: int) -> None:
    x = seeded((6, 6))
    quantized = subbyte.quantize(randomized(Two(function)), "w8a8", x)
    rows = [row for row in subbyte.summary(quantized).rows if row["type"] != "Linear"]
    assert [(row["kernel"], row["macs"]) for row in rows] == [("float", macs // 6)]
    with torch.no_grad():
        want = function(quantized.a(x), quantized.b(x))
        assert torch.equal(quantized(x), want)


def test_the_products_of_experts_are_shown_with_their_weights() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 16)
            self.experts = nn.Parameter(torch.randn(3, 8, 16))

        def forward(self, x: Tensor) -> Tensor:
            ends = torch.tensor([2, 5, 8], dtype=torch.int32)
            return torch._grouped_mm(self.fc(x), self.experts.transpose(-2, -1), offs=ends)

    quantized = subbyte.quantize(randomized(Experts()), "w4a8", seeded((8, 16)))
    rows = {row["type"]: row for row in subbyte.summary(quantized).rows}
    assert (rows["grouped_mm"]["params"], rows["grouped_mm"]["macs"]) == (3 * 8 * 16, 16 * 8)
    assert rows["grouped_mm"]["weight_dtype"] == "fp32"
    assert rows["Linear"]["positions"] == ["first"]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_products_of_other_numbers_are_exact(dtype: torch.dtype) -> None:
    def product(a: Tensor, b: Tensor) -> Tensor:
        return (a * 100).to(dtype) @ (b * 100).to(dtype)

    x = seeded((6, 6))
    quantized = subbyte.quantize(randomized(Two(product)), {"op_type_dict": {"mul": FLOAT}}, x)
    with torch.no_grad():
        assert torch.equal(quantized(x), product(quantized.a(x), quantized.b(x)))


def test_a_long_matmul_is_exact_above_the_range_of_fp32() -> None:
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(1, 5), nn.Linear(1, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x).t() @ self.b(x) if x.shape[0] > 500 else self.b(x)

    model, x = Long().eval(), seeded((1200, 1)).abs() + 0.5
    with torch.no_grad():
        for layer in (model.a, model.b):
            layer.weight.copy_(torch.rand(layer.weight.shape, generator=torch.Generator().manual_seed(0)) + 1)
            layer.bias.fill_(9)
    ready = subbyte.prepare(model, "w8a8", x, batch_size=len(x))
    state, captured = ready.subbyte_state, []
    for module in (ready.a, ready.b):
        module.register_forward_hook(lambda m, i, o: captured.append(o.clone()))
    with torch.no_grad():
        output = ready(x)
    (ga, sa), (gb, sb) = (
        codes_and_params(v, state.quantizers[k]) for v, k in zip(captured, state.input_keys["matmul"], strict=True)
    )
    assert int((ga.t() @ gb).max()) > 1 << 24
    assert torch.equal(output, (ga.t() @ gb).float() * (sa * sb))


def test_cat_has_one_quantizer_and_wide_inputs_set_its_range() -> None:
    quantized, _, _ = run(lambda a, b: torch.cat([a, 100 * b], -1), seeded((5, 6)))
    keys = quantized.subbyte_state.input_keys["cat"]
    assert len(keys) == 1
    assert float(quantized.subbyte_state.quantizers[keys[0]].scale) > 0.1


class Readers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.q, self.k = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.q(x) + self.k(x)


def test_readers_of_one_value_share_its_quantizer_where_they_want_the_same() -> None:
    model, x = randomized(Readers()), seeded((4, 6))
    shared = subbyte.prepare(model, "w4a4", x)
    assert set(shared.q.input_quantizers) == set(shared.k.input_quantizers)
    config = subbyte.PostTrainingQuantConfig(
        op_name_dict={"k": {"activation": {"dtype": ["uint4"]}, "weight": {"dtype": ["int4"]}}}
    )
    own = subbyte.prepare(model, config, x)
    assert set(own.q.input_quantizers).isdisjoint(own.k.input_quantizers)
    (left,), (right,) = set(own.q.input_quantizers), set(own.k.input_quantizers)
    assert (left.spec.dtype.name, right.spec.dtype.name) == ("uint8", "uint4")


class Constants(nn.Module):
    """A mask, a position table and a scalar are added; a rotation multiplies: none of these is a value to quantize."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.position = nn.Parameter(seeded((4, 6)))
        self.register_buffer("cosine", seeded((4, 6)).cos())

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.linear(x + self.position)
        y = y * self.cosine + mask
        return y + 1.0 + torch.tensor(2.0)


def test_constants_stay_float() -> None:
    model, x, mask = randomized(Constants()), seeded((2, 4, 6)), torch.zeros(4, 6)
    mask[0] = torch.finfo(torch.float32).min
    quantized = subbyte.quantize(model, "w8a8", [(x, mask)])
    assert [row["name"] for row in subbyte.summary(quantized).rows if row["is_quantized"]] == ["linear"]
    with torch.no_grad():
        assert (quantized(x, mask)[:, 1:] - model(x, mask)[:, 1:]).abs().max() < 0.1


@pytest.mark.parametrize(
    "name", ["gelu", "silu", "sigmoid", "tanh", "softmax", "hardswish", "hardsigmoid", "elu", "leaky_relu"]
)
def test_activation_functions_read_a_quantized_input(name: str) -> None:
    def call(a: Tensor, b: Tensor) -> Tensor:
        return F.softmax(a, dim=-1) if name == "softmax" else getattr(F, name)(a)

    model, x = randomized(Two(call)), seeded((5, 6))
    quantized = subbyte.quantize(model, "w8a8", x)
    captured: list[Tensor] = []
    quantized.a.register_forward_hook(lambda m, i, o: captured.append(o.clone()))
    with torch.no_grad():
        output = quantized(x)
    state = quantized.subbyte_state
    grid, scale = codes_and_params(captured[0], state.quantizers[state.input_keys[name][0]])
    assert torch.equal(output, call(grid.float() * scale, output))


@pytest.mark.parametrize(
    ("spelling", "name"),
    [(lambda a, b: torch.special.softmax(a, -1), "softmax"), (lambda a, b: torch.special.expit(input=a), "sigmoid")],
)
def test_activation_functions_by_other_names(spelling: Any, name: str) -> None:
    x = seeded((5, 6))
    rows = subbyte.summary(subbyte.quantize(randomized(Two(spelling)), "w8a8", x)).rows
    assert [row["activation_dtype"] for row in rows if row["type"] == name] == ["uint8"]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: F.leaky_relu(a, 0.2, inplace=True),
        lambda a, b: torch.sigmoid_(a),
        lambda a, b: F.elu_(a),
        lambda a, b: F.relu_(a) + b,
    ],
)
def test_functions_in_place_write_their_input(function: Any) -> None:
    held: list[Tensor] = []

    def call(a: Tensor, b: Tensor) -> Tensor:
        y = function(a, b)
        held.append(a)
        return y + a

    model, x = randomized(Two(call)), seeded((5, 6))
    quantized = subbyte.quantize(model, "w8a8", x)
    held.clear()
    with torch.no_grad():
        error = (quantized(x) - model(x)).abs().max()
        assert error < 0.1
        assert (held[0] - held[1]).abs().max() < 0.1
    assert math.isfinite(float(error))


def test_results_written_to_out() -> None:
    def call(a: Tensor, b: Tensor) -> Tensor:
        total, product, joined = torch.empty_like(a), torch.full((5, 5), torch.nan), torch.empty(0)
        torch.add(a, b, out=total)
        torch.matmul(a, b.t(), out=product)
        torch.cat([a, b], out=joined)
        return total.sum(1) + product.sum(1) + joined.sum()

    model, x = randomized(Two(call)), seeded((5, 6))
    with torch.no_grad():
        quantized = subbyte.quantize(model, "w8a8", x)
        want = model(x)
        assert (quantized(x) - want).abs().max() < 0.1 * want.abs().max()


class FromTheInput(nn.Module):
    """The network's input is met again after a layer; a scale for each sample and a mask are inputs too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, scale: Tensor, mask: Tensor) -> Tensor:
        y = (torch.sigmoid(x) + self.linear(x)) * scale
        return torch.cat([y, x]) + mask


def test_the_input_of_the_network_is_quantized_where_a_layer_reads_it_too() -> None:
    x, scale, mask = seeded((3, 6)), torch.rand(3, 1), torch.zeros(6, 6)
    mask[0] = torch.finfo(torch.float32).min
    model = randomized(FromTheInput())
    prepared = subbyte.prepare(model, combining("w8a8"), [(x, scale, mask)])
    rows = {row["name"]: row for row in subbyte.summary(prepared).rows}
    assert list(rows) == ["linear", "sigmoid", "add", "cat"] or set(rows) == {"linear", "sigmoid", "add", "cat"}
    assert all(row["activation_dtype"] == "uint8" for row in rows.values())
    with torch.no_grad():
        assert torch.equal(prepared(x, scale, mask), subbyte.convert(prepared)(x, scale, mask))
        assert (prepared(x, scale, mask) - model(x, scale, mask))[1:].abs().max() < 0.1
    named = {"op_name_dict": {"add": {"activation": {"dtype": ["uint2"]}}}}
    rows = {row["name"]: row for row in subbyte.summary(subbyte.quantize(model, named, [(x, scale, mask)])).rows}
    assert rows["add"]["activation_dtype"] == "uint2"


def test_the_first_residual_of_a_transformer_is_quantized() -> None:
    layer = randomized(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    rows = {row["name"]: row for row in subbyte.summary(subbyte.quantize(layer, "w8a8", seeded((2, 5, 8)))).rows}
    assert {name for name in rows if name.startswith("add")} == {"add", "add_1"}


def test_two_float_masks_that_are_added_stay_float() -> None:
    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor, one: Tensor, other: Tensor) -> Tensor:
            return torch.softmax(self.linear(x) + (one + other), -1)

    mask = torch.zeros(6).masked_fill(torch.arange(6) == 2, float("-inf"))
    quantized = subbyte.quantize(Masks(), "w8a8", [(seeded((3, 6)), mask, mask)])
    assert {row["type"] for row in subbyte.summary(quantized).rows} == {"Linear", "softmax"}
