"""Weights that a model's own code reads, past the module that holds them: quantized there too, in every form."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte import ConfigError, ModelError, UnseenOpError

TOKENS = torch.arange(12).reshape(3, 4)
READERS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "linear": lambda h, w: F.linear(h, w),
    "matmul of the transpose": lambda h, w: h @ w.T,
    "method": lambda h, w: h.matmul(w.t()),
    "addmm": lambda h, w: torch.addmm(torch.ones(16), h[0], w.transpose(0, 1)),
    "einsum": lambda h, w: torch.einsum("btd,vd->btv", h, w),
    "normalized": lambda h, w: F.linear(h, F.normalize(w)),
    "penalty": lambda h, w: h + w.pow(2).sum() + (w**2).mean(),
    "scaled": lambda h, w: F.linear(h, w * 0.5 + 1 - 0.25),
    "divided": lambda h, w: F.linear(h, w / 2),
    "reflected": lambda h, w: F.linear(h, 2 * w),
    "negated": lambda h, w: F.linear(h, -w),
    "right operand": lambda h, w: F.linear(h, 1 - w) + F.linear(h, 1 / (w * w + 1)) + F.linear(h, 2**w),
    "compared": lambda h, w: (
        F.linear(h, abs(w)) + (w > 0).sum() + (w <= 0.1).sum() + (w // 0.5).sum() + (w % 0.5).sum()
    ),
    "iterated": lambda h, w: h + sum(w) + torch.stack([row * 2 for row in w]).sum(),
    "rows": lambda h, w: h + w[0] + w[1, 2] + len(w),
    "left factor": lambda h, w: w @ h[0, 0],
    "cast": lambda h, w: F.linear(h.to(w.dtype), w.to(h.dtype), torch.zeros(w.shape[0], device=w.device)),
    "doubled": lambda h, w: F.linear(h.double(), w.double()) + F.linear(h, w.half().float()),
    "listed": lambda h, w: torch.cat([h[0], w]),
}


class Reader(nn.Module):
    def __init__(self, read: Callable[[Tensor, Any], Tensor]) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(16, 6), nn.Linear(6, 6)
        self.read = read

    def forward(self, tokens: Tensor) -> Tensor:
        return self.read(torch.tanh(self.fc(self.table(tokens))), self.table.weight)


@pytest.mark.parametrize("config", ["w4a8", "w2", "w4:g4", "wnf4", "w1a8", "w3a8:dynamic"])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_they_are_the_quantized_ones_in_every_form(read: Any, config: str, tmp_path: Any) -> None:
    model = randomized(Reader(read))
    prepared = subbyte.prepare(model, config, TOKENS)
    converted = subbyte.convert(prepared)
    with torch.no_grad():
        want = prepared(TOKENS)
        assert torch.equal(converted(TOKENS), want)
        # The weight is not the float one: with quantized values in its place the float model is as far off.
        with_float = model.read(torch.tanh(prepared.fc(prepared.table(TOKENS))), model.table.weight)
        assert not torch.allclose(want, with_float, rtol=1e-4)
        subbyte.save(converted, tmp_path / "model.safetensors")
        assert torch.equal(subbyte.load(tmp_path / "model.safetensors", model)(TOKENS), want)


@pytest.mark.parametrize("config", ["w2", "w4a8:dynamic"])
def test_without_data_they_are_found_in_the_first_forward(config: str) -> None:
    model = randomized(Reader(READERS["linear"]))
    prepared = subbyte.prepare(model, config)
    converted = subbyte.convert(prepared)
    with torch.no_grad():
        assert torch.equal(prepared(TOKENS), converted(TOKENS))
        assert not torch.allclose(prepared(TOKENS), model(TOKENS), rtol=1e-3)


def test_calibration_sees_the_float_weight() -> None:
    model = randomized(Reader(READERS["scaled"]))
    prepared = subbyte.prepare(model, "w1a8", TOKENS)
    plain = subbyte.prepare(model, {"op_name_dict": {"table": {"weight": {"dtype": ["fp32"]}}}}, TOKENS)
    for name, quantizer in prepared.subbyte_state.quantizers.items():
        assert torch.equal(quantizer.scale, plain.subbyte_state.quantizers[name].scale)


def test_gradients_reach_them() -> None:
    model = randomized(Reader(READERS["linear"]))
    prepared = subbyte.prepare(model, "w4a8", TOKENS).train()
    prepared(TOKENS).sum().backward()
    both = prepared.table.weight.grad.clone()
    prepared.zero_grad()
    prepared.read = lambda h, w: h
    prepared(TOKENS).sum().backward()
    assert not torch.equal(prepared.table.weight.grad, both)


def test_a_batch_norm_is_not_folded_into_one() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x)) + self.conv.weight.sum() if float(x.mean()) < 9 else self.norm(self.conv(x))

    model, x = randomized(Net()), seeded((2, 3, 6, 6))
    conf = subbyte.PostTrainingQuantConfig(op_type_dict={"Conv2d": {"weight": {"granularity": ["per_tensor"]}}})
    for data in ([x], [x, x + 20], [x + 20, x]):
        prepared = subbyte.prepare(model, conf, data)
        assert prepared.subbyte_state.graph.ops["conv"].norm == ""
        with torch.no_grad():
            assert torch.equal(prepared(x), subbyte.convert(prepared)(x))


def test_a_weight_with_two_precisions_cannot_be_read() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(16, 6), nn.Linear(6, 16, bias=False)
            self.head.weight = self.table.weight

        def forward(self, tokens: Tensor) -> Tensor:
            h = self.table(tokens)
            return self.head(h) + F.linear(h, self.table.weight)

    with torch.no_grad():
        prepared = subbyte.prepare(Net(), "w4", TOKENS)
        assert torch.equal(prepared(TOKENS), subbyte.convert(prepared)(TOKENS))
    with pytest.raises(ConfigError, match=r"head.*table"):
        subbyte.prepare(Net(), {"precision": "w4", "op_name_dict": {"head": {"weight": {"dtype": ["int8"]}}}}, TOKENS)


class ScaledEmbedding(nn.Embedding):
    """As the token tables of BART, M2M100 and Gemma: a type of its own, so no op that the library knows."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * 3.0


class TiedToUnknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = ScaledEmbedding(16, 6), nn.Linear(6, 16, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens))


class SecondName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.table = nn.Linear(6, 6), nn.Embedding(16, 6)
        self.second = self.head.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.head(self.table(tokens)), self.second)


class InContainers(SecondName):
    def __init__(self) -> None:
        super().__init__()
        self.listed = nn.ParameterList([self.head.weight])
        self.plain = {"weights": [self.head.weight]}

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.head(self.table(tokens)), self.listed[0]) @ self.plain["weights"][0]


@pytest.mark.parametrize("config", ["w4a8", "w2", "w4a8:dynamic"])
@pytest.mark.parametrize("kind", [TiedToUnknown, SecondName, InContainers])
def test_a_weight_held_under_another_name_is_packed_there_too(kind: Any, config: str, tmp_path: Any) -> None:
    model = randomized(kind())
    for data in (TOKENS, None) if config != "w4a8" else (TOKENS,):
        prepared = subbyte.prepare(model, config, data)
        for converted in (subbyte.convert(prepared), subbyte.quantize(model, config, data)):
            with torch.no_grad():
                want = prepared(TOKENS)
                assert not torch.allclose(want, model(TOKENS), rtol=1e-3)
                assert torch.equal(converted(TOKENS), want)
            assert not any(parameter.ndim == 2 for parameter in converted.parameters())
            subbyte.save(converted, tmp_path / "model.safetensors")
            with torch.no_grad():
                assert torch.equal(subbyte.load(tmp_path / "model.safetensors", model)(TOKENS), want)


def test_a_weight_that_stays_float_under_another_name_is_refused() -> None:
    class Net(TiedToUnknown):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.Embedding(16, 6)
            self.bag.weight = self.table.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.table(tokens) + self.bag(tokens))

    with pytest.raises(ConfigError, match="one weight precision"):
        subbyte.prepare(Net(), {"precision": "w4", "op_name_dict": {"bag": {"weight": {"dtype": ["fp32"]}}}}, TOKENS)


def test_a_packed_weight_cannot_be_written() -> None:
    converted = subbyte.quantize(nn.Sequential(nn.Linear(4, 4)), "w4")
    for write in (lambda w: w.data, lambda w: w.zero_(), lambda w: nn.init.zeros_(w), lambda w: torch.relu_(w)):
        with pytest.raises(ModelError, match="cannot be written"):
            write(converted[0].weight)


def clamped(weight: Any) -> None:
    weight.clamp_(-0.1, 0.1)


def clamped_out(weight: Any) -> None:
    torch.clamp(weight, -0.1, 0.1, out=weight)


def clamped_data(weight: Any) -> None:
    weight.data.clamp_(-0.1, 0.1)


def replaced_data(weight: Any) -> None:
    weight.data = torch.renorm(weight.data, 2, 0, 0.1)


def row_of_data(weight: Any) -> None:
    weight.detach()[1] = 0


@pytest.mark.parametrize("write", [clamped, clamped_out, clamped_data, replaced_data, row_of_data])
@pytest.mark.parametrize("call", [subbyte.prepare, subbyte.quantize])
def test_a_weight_that_forward_writes_is_refused_and_not_written(call: Any, write: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                write(self.fc.weight)
            return self.fc(x)

    model = Net()
    before = model.fc.weight.detach().clone()
    with pytest.raises(ModelError, match=r"'fc'.*written"):
        call(model, "w4a8", seeded((2, 4)))
    assert torch.equal(model.fc.weight, before)


@pytest.mark.parametrize("call", [subbyte.prepare, subbyte.quantize])
def test_another_parameter_that_forward_writes_is_the_copy_s(call: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.free = nn.Linear(4, 4), nn.Linear(4, 4)
            self.alpha = nn.Parameter(torch.full((4,), 4.0))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.alpha.clamp_(0, 1)
                self.fc.bias.clamp_(0, 1)
            return self.free(self.fc(x)) * self.alpha

    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = {"precision": "w4a8", "op_name_dict": {"free": {"weight": {"dtype": ["fp32"]}}}}
    quantized = call(model, config, seeded((2, 4)))
    for value in quantized.parameters():
        value.data.zero_()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("config", "with_data"),
    [("w2", True), ("w2", False), ("w4", False), ("w4a8", True), ("w4a8:dynamic", True), ("w4a8:dynamic", False)],
)
@pytest.mark.parametrize("whole", [True, False])
def test_the_fused_path_of_a_transformer_is_not_taken(config: str, with_data: bool, whole: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = randomized(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False) if whole else layer).eval()
    x = seeded((2, 5, 16))
    prepared = subbyte.prepare(model, config, x if with_data else None)
    converted = subbyte.convert(prepared)
    with torch.no_grad():
        want = prepared(x)
        assert torch.equal(converted(x), want)
        assert not torch.allclose(want, model(x), rtol=1e-3)
        if whole and config == "w2":  # a part of the model that is called by itself
            assert torch.equal(prepared.layers[0](x), converted.layers[0](x))
    with torch.inference_mode():
        assert torch.equal(converted(x), want)


def test_code_that_asks_a_weight_for_its_properties_changes_nothing() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            assert self.fc.weight.requires_grad in (True, False)
            assert self.fc.weight.ndim == self.fc.weight.dim() == 2
            assert self.fc.weight.size(0) == self.fc.weight.shape[0] == 4
            return self.fc(x.to(self.fc.weight.device, self.fc.weight.dtype))

    prepared = subbyte.prepare(Net().eval(), "w4a8", seeded((2, 4)))
    assert prepared.subbyte_state.graph.read_by_code == set()
    assert torch.equal(prepared(seeded((2, 4))), subbyte.convert(prepared)(seeded((2, 4))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_they_follow_a_cast_of_the_model(dtype: torch.dtype) -> None:
    model = randomized(Reader(lambda h, w: F.linear(h, w) + F.linear(h, w.T.T)))
    prepared = subbyte.prepare(model, "w4a8", TOKENS)
    converted = subbyte.convert(prepared).to(dtype)
    with torch.no_grad():
        got = converted(TOKENS)
        assert got.dtype == dtype
        assert torch.equal(prepared.to(dtype)(TOKENS), got)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = ScaledEmbedding(16, 6), nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.table(tokens))


class EncoderAndHead(nn.Module):
    """As BART: `generate()` calls the encoder by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(6, 16, bias=False)
        self.head.weight = self.encoder.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(tokens))


@pytest.mark.parametrize("config", ["w4", "wnf4", "w4a8:dynamic", "w4a8"])
@pytest.mark.parametrize("with_data", [True, False])
def test_a_part_that_is_called_by_itself_reads_the_quantized_weight(
    config: str, with_data: bool, tmp_path: Any
) -> None:
    if config == "w4a8" and not with_data:
        return
    model = randomized(EncoderAndHead())
    prepared = subbyte.prepare(model, config, TOKENS if with_data else None).eval()
    with torch.no_grad():
        if not with_data:
            prepared(TOKENS)
        converted = subbyte.convert(prepared)
        subbyte.save(converted, tmp_path / "model.safetensors")
        loaded = subbyte.load(tmp_path / "model.safetensors", model)
        want = prepared.encoder(TOKENS)
        assert torch.equal(prepared.head(want), prepared(TOKENS))
        for other in (converted, loaded):
            assert torch.equal(other.encoder(TOKENS), want)


def test_a_part_called_before_a_model_without_data_is_refused() -> None:
    model = randomized(EncoderAndHead())
    converted = subbyte.quantize(model, "w4a8:dynamic")
    with torch.no_grad():
        with pytest.raises(UnseenOpError, match=r"'encoder\.fc' was called before the model itself"):
            converted.encoder(TOKENS)
        converted(TOKENS)
        assert converted.encoder(TOKENS).shape == (3, 4, 6)
        alone = subbyte.quantize(model, "w4")  # no function to be found
        assert alone.encoder(TOKENS).shape == (3, 4, 6)
