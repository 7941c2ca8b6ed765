"""Meeting two models op by op: every figure against one computed from outputs that plain hooks take."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, combining, randomized, seeded, tiny_transformer
from subbyte import CalibrationError, ModelError
from subbyte.adaptor.pytorch.comparison import Meeting, OpError, QuantizerUse, meet
from subbyte.adaptor.pytorch.graph import Op
from subbyte.numerics import sqnr
from subbyte.spec import QuantParams, TensorSpec


@pytest.fixture(scope="module")
def data() -> Tensor:
    return seeded((4, 3, 8, 8))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return randomized(ResidualNet(6))


@pytest.fixture(scope="module")
def quantized(model: nn.Module, data: Tensor) -> nn.Module:
    return subbyte.quantize(model, "w4a4", data)


@pytest.fixture(scope="module")
def met(model: nn.Module, quantized: nn.Module, data: Tensor) -> Meeting:
    return meet(model, quantized, data)


def seen(model: nn.Module, names: list[str], *args: Any) -> dict[str, tuple[Any, Any]]:
    """The first argument and the output of each named module."""
    found = {}
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda module, given, output, name=name: found.update({name: (given[0].clone(), output.clone())})
        )
        for name in names
    ]
    with torch.no_grad():
        model(*args)
    for handle in handles:
        handle.remove()
    return found


def on_grid(x: Tensor, quantizer: Any, low: int, high: int) -> Tensor:
    """x quantized to a range of codes, as the formula says."""
    codes = (torch.round(x / quantizer.scale) + quantizer.zero_point).clamp(low, high)
    return (codes - quantizer.zero_point) * quantizer.scale


def input_quantizer(model: nn.Module, name: str) -> Any:
    (quantizer,) = model.get_submodule(name).input_quantizers
    return quantizer


def test_ops_come_in_the_order_they_run(met: Meeting) -> None:
    assert list(met.ops) == ["conv1", "conv2", "add", "linear"]
    assert met.samples == 4
    assert not met.unreached


def test_output_is_what_both_models_give_with_the_batch_norm(
    met: Meeting, model: nn.Module, quantized: nn.Module, data: Tensor
) -> None:
    expected = seen(model, ["bn1", "bn2", "linear"], data)
    got = seen(quantized, ["conv1", "conv2", "linear"], data)
    for op, norm in (("conv1", "bn1"), ("conv2", "bn2"), ("linear", "linear")):
        assert met.ops[op].output.sqnr == pytest.approx(sqnr([(expected[norm][1], got[op][1])]), rel=1e-6)
        assert met.ops[op].calls == 1


def test_weight_alone_is_the_dequantized_weight_on_float_inputs(
    met: Meeting, model: nn.Module, quantized: nn.Module, data: Tensor
) -> None:
    x, _ = seen(model, ["conv2"], data)["conv2"]
    _, y = seen(model, ["bn2"], data)["bn2"]
    weight = subbyte.weights(quantized)["conv2"].dequantize()
    with torch.no_grad():
        alone = model.bn2(F.conv2d(x, weight, model.conv2.bias, padding=1))
    assert met.ops["conv2"].by_weight.sqnr == pytest.approx(sqnr([(y, alone)]), rel=1e-4)
    assert met.ops["conv2"].weights["weight"].sqnr == pytest.approx(
        sqnr([(model.conv2.weight.detach(), weight)]), rel=1e-4
    )


def test_inputs_alone_are_the_float_weight_on_quantized_inputs(
    met: Meeting, model: nn.Module, quantized: nn.Module, data: Tensor
) -> None:
    x, _ = seen(model, ["conv2"], data)["conv2"]
    _, y = seen(model, ["bn2"], data)["bn2"]
    with torch.no_grad():
        alone = model.bn2(model.conv2(on_grid(x, input_quantizer(quantized, "conv2"), 0, 15)))
    assert met.ops["conv2"].by_input.sqnr == pytest.approx(sqnr([(y, alone)]), rel=1e-4)


def test_a_function_has_the_error_of_its_inputs(
    met: Meeting, model: nn.Module, quantized: nn.Module, data: Tensor
) -> None:
    a, b = seen(model, ["bn2"], data)["bn2"][1], F.relu(seen(model, ["bn1"], data)["bn1"][1])
    first, second = next(iter(quantized.functional_scope.slots.values()))
    bits = quantized.subbyte_state.config.op["add", "add"].activation
    alone = on_grid(a, first, bits.qmin, bits.qmax) + on_grid(b, second, bits.qmin, bits.qmax)
    assert met.ops["add"].by_weight is None
    assert met.ops["add"].by_input.sqnr == pytest.approx(sqnr([(a + b, alone)]), rel=1e-4)


def test_a_shift_is_the_constant_part_of_the_error(model: nn.Module, data: Tensor) -> None:
    prepared = subbyte.prepare(model, "w8a8", data)
    with torch.no_grad():
        prepared.linear.bias += 3.0
    error = meet(model, prepared, data).ops["linear"]
    assert error.shift_power == pytest.approx(9.0 * 4 * 5, rel=1e-2)  # 4 samples, 5 channels
    assert error.by_weight.noise == pytest.approx(9.0 * 4 * 5, rel=1e-2)


def test_batches_add_up(model: nn.Module, quantized: nn.Module, data: Tensor, met: Meeting) -> None:
    parts = meet(model, quantized, iter(data.split(1)))
    assert parts.samples == 4
    for name, error in met.ops.items():
        assert parts.ops[name].calls == 4
        for field in ("output", "by_weight", "by_input"):
            whole, sum_of_parts = getattr(error, field), getattr(parts.ops[name], field)
            if whole is not None:
                assert (sum_of_parts.noise, sum_of_parts.power) == pytest.approx((whole.noise, whole.power), rel=1e-4)
        for where, use in error.uses.items():
            assert torch.equal(use.counts, parts.ops[name].uses[where].counts)


def test_prepared_converted_and_kernels_give_the_same(model: nn.Module, data: Tensor, met: Meeting) -> None:
    prepared = subbyte.prepare(model, "w4a4", data)
    for other in (prepared, subbyte.use_kernels(subbyte.convert(prepared))):
        found = meet(model, other, data)
        assert {name: error.output for name, error in found.ops.items()} == {
            name: error.output for name, error in met.ops.items()
        }
        assert found.ops["conv2"].by_weight == met.ops["conv2"].by_weight


def test_per_tensor_weights_are_met_with_the_norm_in_them(model: nn.Module, data: Tensor) -> None:
    config = {"op_type_dict": {"Conv2d": {"weight": {"granularity": ["per_tensor"]}}}}
    quantized = subbyte.quantize(model, config, data)
    error = meet(model, quantized, data).ops["conv2"]
    factor = model.bn2.weight / torch.sqrt(model.bn2.running_var + model.bn2.eps)
    folded = model.conv2.weight * factor.view(-1, 1, 1, 1)
    expected = sqnr([(folded.detach(), subbyte.weights(quantized)["conv2"].dequantize())])
    assert error.weights["weight"].sqnr == pytest.approx(expected, rel=1e-3)
    peaks = folded.detach().abs().flatten(1).amax(1)
    peaks = peaks[peaks > 0]
    assert error.weights["weight"].spread == pytest.approx(float(peaks.max() / peaks.median()), rel=1e-3)
    assert error.by_weight.sqnr > 20


def test_neither_model_is_changed(model: nn.Module, data: Tensor) -> None:
    original, prepared = copy.deepcopy(model), subbyte.prepare(model, "w4a4", data)
    for each in (original, prepared):
        each.train()
        each.bn1.eval()
    before = [copy.deepcopy(each.state_dict()) for each in (original, prepared)]
    attributes = [{name: list(vars(module)) for name, module in each.named_modules()} for each in (original, prepared)]
    random = torch.get_rng_state()
    given = data.clone()
    meet(original, prepared, given)
    assert torch.equal(random, torch.get_rng_state())
    assert torch.equal(given, data)
    for each, values, names in zip((original, prepared), before, attributes, strict=True):
        assert all(torch.equal(value, values[name]) for name, value in each.state_dict().items())
        assert each.training
        assert each.bn2.training
        assert not each.bn1.training
        assert {name: list(vars(module)) for name, module in each.named_modules()} == names
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in each.modules())


class Repeated(nn.Module):
    """One layer in a loop that writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x += torch.tanh(self.layer(x))
        return x


def test_calls_of_a_loop_add_up_and_what_is_written_in_place_is_kept() -> None:
    model, x = randomized(Repeated()), seeded((4, 8))
    quantized = subbyte.quantize(model, combining("w4a4"), x)
    found = meet(model, quantized, x)
    assert {name: error.calls for name, error in found.ops.items()} == {"layer": 3, "tanh": 3, "add": 3}
    with torch.no_grad():
        expected, got = model(x.clone()), quantized(x.clone())
    assert found.output.output.sqnr == pytest.approx(sqnr([(expected, got)]), rel=1e-6)
    pairs = []
    for each in (model, quantized):
        outputs: list[Tensor] = []
        hook = each.layer.register_forward_hook(lambda module, args, output, kept=outputs: kept.append(output.clone()))
        with torch.no_grad():
            each(x.clone())
        hook.remove()
        pairs.append(outputs)
    assert found.ops["layer"].output.sqnr == pytest.approx(sqnr(zip(*pairs, strict=True)), rel=1e-6)
    # The add quantizes both its inputs, at 8 bits: what it gives is near, unless it was given the sum already.
    assert found.ops["add"].by_input.sqnr > 30


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(6, 8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.cells(x)


@pytest.mark.parametrize("config", ["w4", "w4a8:dynamic"])
def test_recurrent_layers_have_a_weight_and_an_input_for_each_matrix(config: str) -> None:
    model, x = randomized(Recurrent()), seeded((3, 5, 6))
    quantized = subbyte.quantize(model, config, x)
    error = meet(model, quantized, x).ops["cells"]
    alone = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in subbyte.weights(quantized).items():
            getattr(alone.cells, f"weight_{name.removeprefix('cells.')}").copy_(weight.dequantize())
        (y, (h, c)), (z, (i, d)) = model(x), alone(x)
    assert error.by_weight.sqnr == pytest.approx(sqnr([(y, z), (h, i), (c, d)]), rel=1e-3)
    assert set(error.weights) == {"weight ih_l0", "weight hh_l0", "weight ih_l1", "weight hh_l1"}
    inputs = {name for name in error.uses if name.startswith("input")}
    assert inputs == (set() if config == "w4" else {"input ih_l0", "input hh_l0", "input ih_l1", "input hh_l1"})
    assert (error.by_input is None) == (config == "w4")


class Tied(nn.Module):
    """A table that is read as rows, and by the model's own code as a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, index: Tensor) -> Tensor:
        return F.linear(self.layer(self.table(index)), self.table.weight)


def test_a_weight_that_code_reads_is_met_where_it_is_read() -> None:
    model, index = randomized(Tied()), torch.arange(20)[None]
    quantized = subbyte.quantize(model, "w4", index)
    found = meet(model, quantized, index)
    x, y = seen(model, ["layer"], index)["layer"][1], model(index).detach()
    table = subbyte.weights(quantized)["table"].dequantize()
    assert found.ops["linear"].by_weight.sqnr == pytest.approx(sqnr([(y, F.linear(x, table))]), rel=1e-4)
    rows = model.table.weight.detach()
    assert found.ops["table"].by_weight.sqnr == pytest.approx(sqnr([(rows, table)]), rel=1e-4)


@pytest.mark.parametrize("config", ["w8a8", "w4a8:dynamic", "w4:g32"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_transformers_meet_at_every_op(name: str, config: str) -> None:
    model, batch = tiny_transformer(name), {"input_ids": torch.arange(24).view(2, 12)}
    quantized = subbyte.quantize(model, config, [batch])
    found = meet(model, quantized, [batch])
    assert len(found.ops) > 12
    assert not found.unreached
    assert all(error.calls == 1 and not error.unmet for error in found.ops.values())
    weighted = [error for error in found.ops.values() if error.weights]
    assert len(weighted) > 8
    assert all(error.by_weight.noise > 0 for error in weighted)
    assert all(error.by_input.noise > 0 for error in weighted if "input" in error.uses)


def test_a_model_quantized_without_data_stays_as_it_was() -> None:
    model, batch = tiny_transformer("bert"), {"input_ids": torch.arange(24).view(2, 12)}
    quantized = subbyte.quantize(model, "w4a8:dynamic")
    known = list(quantized.subbyte_state.graph.ops)
    found = meet(model, quantized, [batch])
    assert list(quantized.subbyte_state.graph.ops) == known
    assert quantized.subbyte_state.run.awaits_first
    with_functions = subbyte.quantize(model, "w4a8:dynamic", [batch])
    assert {name: error.output for name, error in found.ops.items()} == {
        name: error.output for name, error in meet(model, with_functions, [batch]).ops.items()
    }


class Undecided(nn.Module):
    """Calls its layer once more where the first result is on one side of a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.limit, self.above = nn.Linear(4, 4), 0.0, True

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        for _ in range(2 if bool(y.max() > self.limit) == self.above else 1):
            y = self.layer(y)
        return y


def first_maximum(model: nn.Module, x: Tensor) -> float:
    outputs: list[Tensor] = []
    hook = model.layer.register_forward_hook(lambda module, args, output: outputs.append(output.detach()))
    model(x)
    hook.remove()
    return float(outputs[0].max())


@pytest.mark.parametrize("above", [True, False])
def test_calls_without_counterpart_are_counted_apart(above: bool) -> None:
    model, x = randomized(Undecided()), seeded((8, 4))
    quantized = subbyte.quantize(model, "w4a4", x)
    limit = (first_maximum(model, x) + first_maximum(quantized, x)) / 2
    for each in (model, quantized):
        each.limit, each.above = limit, above
    quantized.subbyte_state.fingerprint["the model itself"] |= {"limit": repr(limit), "above": repr(above)}
    error = meet(model, quantized, x).ops["layer"]
    assert (error.calls, error.unmet) == (2, 1)


def test_an_output_that_is_written_over_is_met_as_it_was() -> None:
    model, x = randomized(nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))), seeded((4, 8))
    quantized = subbyte.quantize(model, "w4a4", x)
    pairs = [(seen(model, ["0"], x)["0"][1], seen(quantized, ["0"], x)["0"][1])]
    assert meet(model, quantized, x).ops["0"].output.sqnr == pytest.approx(sqnr(pairs), rel=1e-6)


def test_a_module_that_writes_over_its_input_is_met_with_what_that_was() -> None:
    model, x = (
        randomized(nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.1, inplace=True), nn.Linear(8, 4))),
        seeded((4, 8)),
    )
    quantized = subbyte.quantize(model, "w8a8", x)
    before = seen(model, ["0"], x)["0"][1]
    alone = F.leaky_relu(on_grid(before, input_quantizer(quantized, "1"), 0, 255), 0.1)
    error = meet(model, quantized, x).ops["1"]
    assert error.by_input.sqnr == pytest.approx(sqnr([(F.leaky_relu(before, 0.1), alone)]), rel=1e-4)


@pytest.mark.parametrize("config", ["w4", "w8a8"])
def test_the_products_inside_an_attention_layer_are_met(config: str) -> None:
    torch.manual_seed(0)
    model, x = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(), seeded((2, 6, 16))
    found = meet(model, subbyte.quantize(model, config, x), x)
    assert {"scaled_dot_product_attention", "Linear"} <= {error.op.type for error in found.ops.values()}
    assert all((error.calls, error.unmet) == (1, 0) for error in found.ops.values())


def test_an_infinity_that_both_have_is_a_mask() -> None:
    error = OpError(Op("add", "add", "other", "function"))
    error.add_call([torch.tensor([-torch.inf, 1.0, torch.inf])], [torch.tensor([-torch.inf, 1.5, torch.nan])])
    assert error.not_finite == (1, 1)
    assert (error.output.power, error.output.noise) == (1.0, 0.25)


def test_values_that_are_not_finite_are_counted_and_left_out(model: nn.Module, data: Tensor) -> None:
    prepared = subbyte.prepare(model, "w8a8", data)
    prepared.linear.bias.data.fill_(torch.inf)
    found = meet(model, prepared, data)
    assert found.ops["conv2"].not_finite == (0, 0)
    assert found.ops["linear"].not_finite == (0, 20)
    assert found.ops["linear"].output.count == 0
    holed = data.clone()
    holed[0] = torch.nan
    error = meet(model, subbyte.prepare(model, "w8a8", data), holed).ops["conv1"]
    assert error.not_finite[0] == 6 * 64
    assert error.output.count == 3 * 6 * 64


def test_use_of_codes_and_range() -> None:
    use = QuantizerUse(TensorSpec("uint4"))
    params = QuantParams(torch.tensor(0.5), torch.tensor(4, dtype=torch.int32))  # -2 ... 5.5
    use.add(torch.tensor([[0.0, 0.6, -1.0], [6.0, 5.7, -1.0]]), params)
    assert use.counts.tolist() == [0, 0, 2, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert use.saturation == pytest.approx(1 / 6)  # 5.7 is rounded, 6.0 is clipped
    assert use.range == (-2.0, 5.5)
    assert use.data == (-1.0, 6.0)
    assert use.codes_used == 4 / 16
    assert use.range_used == pytest.approx((15 - 2) / 15)
    assert use.outliers == pytest.approx(6.0 / 5.7)  # by the last axis: 6.0, 5.7, 1.0


def test_the_bulk_is_without_rare_values() -> None:
    use = QuantizerUse(TensorSpec("int8"))
    x = torch.cat([torch.linspace(-1, 1, 9991), torch.tensor([12.7] * 9)])
    use.add(x, QuantParams(torch.tensor(0.1), torch.tensor(0, dtype=torch.int32)))
    assert use.range_used == pytest.approx((127 + 10) / 255)
    assert use.bulk_used == pytest.approx((10 + 10) / 255)


def test_codebooks_are_ordered_by_value() -> None:
    use = QuantizerUse(TensorSpec(subbyte.DataType("shuffled", values=(1.0, -1.0, 0.0, 0.5))))
    use.add(torch.tensor([1.0, 0.1]), QuantParams(torch.tensor(1.0)))
    assert use.range_used == pytest.approx(1.0 / 2)
    assert use.range == (-1.0, 1.0)


def test_models_that_do_not_belong_together_are_refused(model: nn.Module, quantized: nn.Module, data: Tensor) -> None:
    with pytest.raises(ModelError, match="the first model is quantized; give the float model first"):
        meet(quantized, model, data)
    with pytest.raises(ModelError, match="this model is not quantized"):
        meet(model, model, data)
    with pytest.raises(ModelError, match=r"not made from .*6 in the quantized model, 8 in this model"):
        meet(ResidualNet(8), quantized, data)


def test_data_that_does_not_fit_is_refused(model: nn.Module, quantized: nn.Module, data: Tensor) -> None:
    with pytest.raises(CalibrationError, match="give the inputs alone"):
        meet(model, quantized, [(data, torch.zeros(4))])
    with pytest.raises(CalibrationError, match="empty"):
        meet(model, quantized, [])
    with pytest.raises(CalibrationError, match="not a NoneType"):
        meet(model, quantized, None)
    assert not any(module._forward_hooks for each in (model, quantized) for module in each.modules())
