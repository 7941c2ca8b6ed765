"""A model that takes one configuration after another is the model that would be quantized anew, bit for bit."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, cifar_images, randomized, real_resnet20, seeded, tiny_transformer
from subbyte import OpConfig, PostTrainingQuantConfig, TensorSpec, TuneConfig
from subbyte.adaptor.pytorch.adaptor import PyTorchAdaptor
from subbyte.adaptor.pytorch.tunable import PyTorchTunableModel
from subbyte.algorithms import as_methods, recover
from subbyte.capability import load_capability
from subbyte.errors import CalibrationError, ConfigError, EvaluationError, TuningError


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6)
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.linear = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.table(tokens))
        return self.linear(states[:, -1])


class Branching(nn.Module):
    """One layer called twice, a concatenation, a product of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 8)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        once = torch.tanh(self.shared(x))
        twice = self.shared(once)
        return self.last(torch.cat([once, twice], -1)) + torch.matmul(once, twice.mT).mean(-1, keepdim=True)


def tunable(model: nn.Module, data: Any, **config: Any) -> PyTorchTunableModel:
    adaptor = PyTorchAdaptor(load_capability("pytorch_cpu"))
    return adaptor.tunable(model, PostTrainingQuantConfig(**config), data)


def draw(model: PyTorchTunableModel, seed: int) -> TuneConfig:
    generator = random.Random(seed)
    return TuneConfig({key: generator.choice(each) for key, each in model.alternatives.items()})


def as_float(model: PyTorchTunableModel) -> TuneConfig:
    return TuneConfig(dict.fromkeys(model.alternatives, OpConfig()))


def first_tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


CASES = {
    "residual": (lambda: randomized(ResidualNet()), lambda: seeded((4, 3, 8, 8)), {}),
    "dynamic": (lambda: randomized(ResidualNet()), lambda: seeded((4, 3, 8, 8)), {"approach": "dynamic"}),
    "weight only": (lambda: randomized(ResidualNet()), lambda: seeded((4, 3, 8, 8)), {"approach": "weight_only"}),
    "per tensor": (
        lambda: randomized(ResidualNet()),
        lambda: seeded((4, 3, 8, 8)),
        {"op_type_dict": {"Conv2d": {"weight": {"granularity": ["per_tensor"], "dtype": ["int4", "int8"]}}}},
    ),
    "algorithms": (
        lambda: randomized(ResidualNet()),
        lambda: seeded((4, 3, 8, 8)),
        {
            "op_type_dict": {
                "Conv2d": {"activation": {"algorithm": ["kl"]}},
                "add": {"activation": {"scheme": ["asym"]}},
            }
        },
    ),
    "branching": (lambda: randomized(Branching()), lambda: seeded((4, 6, 8)), {}),
    "recurrent": (lambda: randomized(Recurrent()), lambda: torch.arange(24).view(4, 6) % 12, {"approach": "auto"}),
    "bert": (lambda: tiny_transformer("bert"), lambda: torch.arange(24).view(2, 12), {}),
    "llama": (lambda: tiny_transformer("llama"), lambda: torch.arange(24).view(2, 12), {}),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, PyTorchTunableModel]:
    make, data, config = CASES[request.param]
    model, x = make(), data()
    return model, x, tunable(model, [x], **config)


def test_every_configuration_is_the_model_that_would_be_quantized(case: Any) -> None:
    model, x, each = case
    for seed in range(2):
        config = draw(each, seed)
        if all(given.is_float for given in config.op.values()):
            continue
        quantized = subbyte.quantize(model, config, [x])
        with torch.no_grad():
            assert torch.equal(first_tensor(each.apply(config)(x)), first_tensor(quantized(x)))
        assert each.size(config) == subbyte.summary(quantized).totals["bytes"]
        with torch.no_grad():
            assert torch.equal(first_tensor(each.quantize(config)(x)), first_tensor(quantized(x)))


def test_float_is_one_of_them(case: Any) -> None:
    model, x, each = case
    each.apply(draw(each, 0))
    with torch.no_grad():
        torch.testing.assert_close(first_tensor(each.apply(as_float(each))(x)), first_tensor(model(x)))
    assert each.size(as_float(each)) == sum(t.nbytes for t in (*model.parameters(), *model.buffers()))


def test_what_came_before_leaves_no_trace(case: Any) -> None:
    _, x, each = case
    with torch.no_grad():
        before = first_tensor(each.apply(draw(each, 1))(x))
        for seed in (2, 3):
            each.apply(draw(each, seed))
        each.apply(as_float(each))
        assert torch.equal(first_tensor(each.apply(draw(each, 1))(x)), before)


def test_real_network() -> None:
    model, x = real_resnet20(), cifar_images(16)
    each = tunable(model, [x])
    for seed in range(2):
        config = draw(each, seed)
        quantized = subbyte.quantize(model, config, [x])
        with torch.no_grad():
            assert torch.equal(each.apply(config)(x), quantized(x))
        assert each.size(config) == subbyte.summary(quantized).totals["bytes"]


def test_calibration_data_is_gone_through_once() -> None:
    seen = 0

    def data() -> Iterator[Tensor]:
        nonlocal seen
        for seed in range(3):
            seen += 1
            yield seeded((4, 3, 8, 8), seed)

    each = tunable(randomized(ResidualNet()), data())
    for seed in range(5):
        each.apply(draw(each, seed))
    assert seen == 3


def test_the_float_model_stays_as_it_is() -> None:
    model = randomized(ResidualNet()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    each = tunable(model, [seeded((4, 3, 8, 8))])
    each.apply(draw(each, 0))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_bit_operations_by_hand() -> None:
    model = randomized(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)))
    each = tunable(model, [seeded((8, 6))])
    assert each.bops(as_float(each)) == (24 + 8) * 32 * 32
    (first, second), chosen = each.alternatives, {}
    chosen[first] = next(c for c in each.alternatives[first] if str(c).startswith("w:int3") and "a:uint5" in str(c))
    assert each.bops(TuneConfig({**as_float(each).op, **chosen})) == 24 * 3 * 5 + 8 * 32 * 32
    weight_only = tunable(model, [seeded((8, 6))], approach="weight_only")
    narrow = next(c for c in weight_only.alternatives[second] if str(c).startswith("w:int2"))
    assert weight_only.bops(TuneConfig({**as_float(weight_only).op, second: narrow})) == 24 * 32 * 32 + 8 * 2 * 32


@pytest.mark.parametrize("part", ["weight", "activation", "both"])
def test_output_error_is_that_of_one_op_alone(part: str) -> None:
    model, x = randomized(ResidualNet()), seeded((8, 3, 8, 8))
    each = tunable(model, [x])
    key = ("conv2", "Conv2d")
    config = next(c for c in each.alternatives[key] if str(c).startswith("w:int3") and "a:uint4" in str(c))
    weight, activation = config.weight, config.activation
    given = {
        "weight": OpConfig(weight=weight, quant_mode="weight_only"),
        "activation": OpConfig(activation=activation),
        "both": config,
    }[part]
    with torch.no_grad():
        expected = model(x)
        if part == "activation":
            quantizer = subbyte.prepare(model, TuneConfig({key: config}), [x]).conv2.input_quantizers
            (one,) = quantizer
            handle = model.conv2.register_forward_pre_hook(lambda module, args: (one.eval()(args[0]),))
            got = model(x)
            handle.remove()
        else:
            got = subbyte.quantize(model, TuneConfig({key: given}), [x])(x)
    error = float((got.double() - expected).square().sum() / expected.double().square().sum())
    assert each.output_error(key, given).squared == pytest.approx(error, rel=1e-4)
    with torch.no_grad():
        assert torch.equal(each.apply(draw(each, 0))(x), subbyte.quantize(model, draw(each, 0), [x])(x))


def test_the_error_of_a_configuration_that_is_recovered() -> None:
    model, x = randomized(ResidualNet()), seeded((64, 3, 8, 8))
    each = tunable(model, [x])
    key, methods = ("conv2", "Conv2d"), as_methods(["gptq", "bias_correction"])
    weight = next(c for c in each.alternatives[key] if str(c).startswith("w:int3")).weight
    config = TuneConfig({key: OpConfig(weight=weight, quant_mode="weight_only")})
    plain = each.error(config).squared
    recovered = each.error(config, lambda prepared: recover(prepared, methods, each.batches)).squared
    with torch.no_grad():
        expected = model(x[:32])
        got = subbyte.quantize(model, config, [x], recover=methods)(x[:32])
    error = float((got.double() - expected).square().sum() / expected.double().square().sum())
    assert recovered == pytest.approx(error, rel=1e-4)
    assert recovered < 0.8 * plain
    assert each.error(config).squared == plain
    with torch.no_grad():
        assert torch.equal(each.apply(draw(each, 0))(x), subbyte.quantize(model, draw(each, 0), [x])(x))


def test_errors_are_measured_on_as_many_samples_of_small_batches() -> None:
    model, x = randomized(ResidualNet()), seeded((40, 3, 8, 8))
    alone, together = tunable(model, list(x.split(4))), tunable(model, [x])  # eight batches have 32
    key = ("conv2", "Conv2d")
    config = next(c for c in alone.alternatives[key] if str(c).startswith("w:int3"))
    one, other = (
        each.output_error(key, OpConfig(config.weight, quant_mode="weight_only")) for each in (alone, together)
    )
    assert one.squared == pytest.approx(other.squared, rel=1e-3)
    assert one.deviation == pytest.approx(other.deviation, abs=1e-5)


def test_error_of_a_whole_configuration() -> None:
    model, x = randomized(ResidualNet()), seeded((8, 3, 8, 8))
    each = tunable(model, [x])
    config = draw(each, 3)
    with torch.no_grad():
        expected, got = model(x), subbyte.quantize(model, config, [x])(x)
    error = float((got.double() - expected).square().sum() / expected.double().square().sum())
    assert each.error(config).squared == pytest.approx(error, rel=1e-4)
    assert each.error(as_float(each)).squared < 1e-10


def test_weight_error_is_that_of_the_packed_weight() -> None:
    model, x = randomized(nn.Sequential(nn.Linear(6, 4))), seeded((8, 6))
    each = tunable(model, [x], approach="weight_only")
    (key,) = each.alternatives
    for config in each.alternatives[key]:
        if config.weight is None:
            assert each.weight_error(key, config) == 0.0
            continue
        packed = subbyte.weights(subbyte.quantize(model, TuneConfig({key: config})))["0"].dequantize()
        expected = float((packed.double() - model[0].weight.detach().double()).square().sum())
        assert each.weight_error(key, config) == pytest.approx(expected)


def test_the_trace_of_a_quadratic_loss_is_exact() -> None:
    # Of mean (w x)^2 over samples the second derivative is 2 E[x x'], which is diagonal for these samples.
    x = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    model = randomized(nn.Sequential(nn.Linear(4, 1, bias=False)))
    each = tunable(model, [x], approach="weight_only")
    traces = each.hessian_traces(lambda net, batch: net(batch).square().mean())
    assert traces == {("0", "Linear"): pytest.approx(2 * (1 + 4 + 9 + 16) / 4 / 4, rel=1e-5)}
    assert model[0].weight.grad is None
    with pytest.raises(TuningError, match="scalar"):
        each.hessian_traces(lambda net, batch: net(batch))


def test_identity_tells_models_and_data_apart() -> None:
    def identity(seed: int, data_seed: int) -> dict[str, str]:
        return dict(tunable(randomized(ResidualNet(), seed), [seeded((2, 3, 8, 8), data_seed)]).identity)

    assert identity(0, 0) == identity(0, 0)
    assert identity(0, 0)["model"] != identity(1, 0)["model"]
    assert identity(0, 0)["data"] != identity(0, 1)["data"]


def test_what_is_refused() -> None:
    model = randomized(ResidualNet())
    with pytest.raises(CalibrationError, match="tuning needs calibration data"):
        tunable(model, None)
    with pytest.raises(ConfigError, match="Conv2e"):
        tunable(model, [seeded((2, 3, 8, 8))], op_type_dict={"Conv2e": "w4a8"})


def test_a_configuration_that_fails_leaves_no_trace() -> None:
    model, x = randomized(ResidualNet()), seeded((4, 3, 8, 8))
    each = tunable(model, [x])
    good, other = draw(each, 1), draw(each, 2)
    each.apply(other)
    key = ("conv2", "Conv2d")
    wrong = OpConfig(TensorSpec("int4", granularity="per_channel"), TensorSpec("uint4"), bias=TensorSpec("int8"))
    for failing in ({**good.op, key: wrong}, {**other.op, key: wrong}):
        with pytest.raises(ConfigError, match="bias"):
            each.apply(TuneConfig(failing))
        with torch.no_grad():
            assert torch.equal(each.apply(good)(x), subbyte.quantize(model, good, [x])(x))


def test_a_strict_capability_refuses_what_could_overflow() -> None:
    capability = replace(load_capability("pytorch_cpu"), strict=True)
    model = randomized(nn.Sequential(nn.Linear(4096, 2)))
    each = PyTorchAdaptor(capability).tunable(model, PostTrainingQuantConfig(), [seeded((2, 4096))])
    (key,) = each.alternatives
    config = next(c for c in each.alternatives[key] if str(c).startswith("w:int8") and "a:uint8" in str(c))
    with pytest.raises(ConfigError, match="strict"):
        each.apply(TuneConfig({key: replace(config, accumulator="int16")}))
    each.apply(TuneConfig({key: config}))


@pytest.mark.parametrize("fault", ["mode", "statistics", "weights"])
def test_what_an_evaluation_does_to_the_model_is_undone(fault: str) -> None:
    model, data = randomized(ResidualNet()).eval(), seeded((4, 3, 8, 8))
    tuned = tunable(model, data)
    for number in range(3):
        config = draw(tuned, number)
        applied = tuned.apply(config)
        with torch.no_grad():
            assert torch.equal(applied(data), subbyte.quantize(model, config, data)(data))
            if fault == "weights":
                for parameter in applied.parameters():
                    parameter.mul_(2)
                continue
            applied.train()
            if fault == "statistics":
                applied(5 * data)
                applied.eval()


def _doubles_weights(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(2)  # without a new version


def _moves_statistics(model: nn.Module) -> None:
    model.train()(5 * seeded((4, 3, 8, 8)))
    model.eval()


def _changes_an_attribute(model: Any) -> None:
    model.conv1.stride = (2, 2)


def _adds_a_hook(model: Any) -> None:
    model.linear.register_forward_hook(lambda module, inputs, output: 2 * output)


def _replaces_a_forward(model: Any) -> None:
    model.linear.forward = lambda x: x


def _trains(model: nn.Module) -> None:
    model(seeded((4, 3, 8, 8))).sum().backward()
    model.requires_grad_(False)


@pytest.mark.parametrize(
    "change",
    [_doubles_weights, _moves_statistics, _changes_an_attribute, _adds_a_hook, _replaces_a_forward, _trains],
)
@pytest.mark.parametrize("times", [1, 2])
def test_tune_puts_back_what_an_evaluation_did_to_the_float_model(
    change: Callable[[nn.Module], None], times: int, tmp_path: Path
) -> None:
    model, data = randomized(ResidualNet()).eval(), seeded((4, 3, 8, 8))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    outputs, seen = model(data), []

    def evaluate(given: nn.Module) -> float:
        if given is model:
            seen.append({key: value.clone() for key, value in given.state_dict().items()})
            change(given)
            if len(seen) < times:
                raise RuntimeError("again")
        return 1.0

    subbyte.tune(model, data, evaluate, max_trials=1, recover=[], storage=tmp_path / "study.db")
    assert len(seen) == times
    for state in (*seen, model.state_dict()):
        assert all(torch.equal(value, before[key]) for key, value in state.items())
    assert torch.equal(model(data), outputs)
    assert all(each.requires_grad and each.grad is None for each in model.parameters())


def _replaces_a_layer(model: Any) -> None:
    model.linear = nn.Linear(6, 5)


def _replaces_a_tensor(model: Any) -> None:
    model.linear.weight = nn.Parameter(torch.zeros_like(model.linear.weight))


def _casts(model: nn.Module) -> None:
    model.half()


@pytest.mark.parametrize(
    ("change", "what"), [(_replaces_a_layer, "layers"), (_replaces_a_tensor, "linear.weight"), (_casts, "conv1.weight")]
)
def test_tune_refuses_an_evaluation_that_replaces_parts_of_the_float_model(
    change: Callable[[nn.Module], None], what: str, tmp_path: Path
) -> None:
    model, data = randomized(ResidualNet()).eval(), seeded((4, 3, 8, 8))
    with pytest.raises(EvaluationError, match=rf"{what}.*copy\.deepcopy"):
        subbyte.tune(
            model, data, lambda given: change(given) or 1.0, max_trials=1, recover=[], storage=tmp_path / "study.db"
        )
