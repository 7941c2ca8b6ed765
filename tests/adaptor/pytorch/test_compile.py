"""torch.compile traces converted and prepared models whole, and computes the same bits."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, ResNetCifar, UNet, randomized, seeded

X = seeded((2, 3, 16, 16))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        y = F.scaled_dot_product_attention(q, k, v) + q * k
        y = F.gelu(torch.cat([y, q], -1)) @ torch.cat([v, k], -1).transpose(-1, -2)
        y += y.sigmoid()
        return y


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "residual": ResidualNet,
    "resnet": lambda: ResNetCifar(8, 4),
    "unet": lambda: UNet(4),
    "functions": Functions,
}
CONFIGS = ("w4a4", "w8a8:dynamic", "w4", "w1a1")
# Each configuration of each network in one of the two forms, so that each configuration and each network has both.
FORMS = [
    (network, config, ("prepared", "converted")[(row + column) % 2])
    for row, network in enumerate(NETWORKS)
    for column, config in enumerate(CONFIGS)
]


@pytest.mark.parametrize(("network", "config", "kind"), FORMS)
def test_compiled_equals_eager(network: str, config: str, kind: str) -> None:
    x = seeded((2, 5, 8)) if network == "functions" else X
    prepared = subbyte.prepare(randomized(NETWORKS[network]()), config, x)
    model = prepared if kind == "prepared" else subbyte.convert(prepared)
    with torch.no_grad():
        want = model(x)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), want)
        assert torch.equal(model(x), want)


def test_a_changed_scale_reaches_compiled_code_without_recompiling() -> None:
    model = subbyte.prepare(randomized(ResidualNet()), "w4a4", X)
    counter = torch._dynamo.testing.CompileCounter()
    with torch.no_grad():
        model(X)
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        before = compiled(X)
        (quantizer,) = set(model.conv2.input_quantizers)
        quantizer.scale.mul_(3)
        after = compiled(X)
        assert not torch.equal(before, after)
        assert torch.equal(after, model(X))
    assert counter.frame_count == 1


class Loop(nn.Module):
    """As many rounds as it is told; whether the last one adds is told too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, rounds: int = 2, more: bool = True) -> Tensor:
        y, z = self.linear(x), self.other(x)
        for _ in range(rounds):
            y = y + z
        if more:
            return y * z
        return (100 * y) * z


def test_ways_that_the_compiler_cannot_tell_apart_run_uncompiled_or_not_at_all() -> None:
    x = seeded((5, 8))
    for data in ([(x, 2, True), (x, 2, False)], [(x, 2, True)]):
        model = subbyte.quantize(randomized(Loop()), "w4a4", data)
        calls = [(1, True), (3, True), *([(2, False)] if len(data) == 2 else [])]
        for rounds, more in calls:
            torch._dynamo.reset()
            with torch.no_grad():
                want = model(x, rounds, more)
                assert torch.equal(torch.compile(model, backend="eager")(x, rounds, more), want)
                torch._dynamo.reset()
                with pytest.raises(torch._dynamo.exc.Unsupported):
                    torch.compile(model, backend="eager", fullgraph=True)(x, rounds, more)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(16, 6), nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.linear(self.table(tokens))), self.table.weight)


@pytest.mark.parametrize("kind", ["prepared", "converted"])
@pytest.mark.parametrize("config", ["w4a8", "w2"])
def test_a_weight_that_code_reads_is_the_quantized_one_when_compiled(config: str, kind: str) -> None:
    tokens = torch.arange(12).reshape(3, 4)
    prepared = subbyte.prepare(randomized(Tied()), config, tokens)
    model = prepared if kind == "prepared" else subbyte.convert(prepared)
    with torch.no_grad():
        want = model(tokens)
        assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(tokens), want)


@pytest.mark.parametrize("kind", ["prepared", "converted"])
def test_a_compiled_transformer_does_not_take_the_fused_path(kind: str) -> None:
    layer, x = randomized(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)), seeded((2, 5, 16))
    prepared = subbyte.prepare(layer, "w2", x)
    model = prepared if kind == "prepared" else subbyte.convert(prepared)
    with torch.no_grad():
        got = torch.compile(model, backend="eager", fullgraph=True)(x)
        torch.testing.assert_close(got, model(x), atol=1e-5, rtol=0)  # attention stays float: fused there or not
        assert (got - layer(x)).abs().max() > 0.05


class Printing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        z = y * torch.sigmoid(y)
        torch._dynamo.graph_break()
        return z + y


def test_a_graph_break_inside_says_what_to_do() -> None:
    model = subbyte.quantize(randomized(Printing()), "w4a4", seeded((2, 8)))
    with torch.no_grad(), pytest.raises(subbyte.UnseenOpError, match=r"graph that torch.compile broke.*fullgraph"):
        torch.compile(model, backend="eager")(seeded((2, 8)))
