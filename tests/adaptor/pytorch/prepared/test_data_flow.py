"""Which channels are which, on networks whose flow is known."""

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResNetCifar, UNet, randomized, seeded, tiny_transformer
from subbyte.adaptor.pytorch.batch import batches
from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.adaptor.pytorch.prepared.channel_rules import NONE
from subbyte.adaptor.pytorch.prepared.data_flow import ChannelLink, DataFlow, data_flow


def flow_of(model: nn.Module, x: Tensor) -> DataFlow:
    prepared = PreparedModel(subbyte.prepare(model, "w4", x), list(batches(x)))
    with prepared.phase("bypass"):
        return data_flow(prepared.model, prepared.batches)


def links_of(model: nn.Module, x: Tensor) -> dict[str, ChannelLink]:
    return {link.source.name: link for link in flow_of(model, x).links()}


class Net(nn.Module):
    """Two linear maps, the first one's value changed on the way by a function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(6, 8), nn.Linear(8, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x)))


SCALES = {
    "relu": torch.relu, "in place": lambda y: y.clone().relu_(), "half": lambda y: y * 0.5 / torch.tensor(3.0),
    "mask": lambda y: y * (torch.arange(8) > 2), "module": nn.LeakyReLU(0.2), "dropout": nn.Dropout(),
    "order": lambda y: y.flip(-1),
    "heads": lambda y: y.unflatten(-1, (2, 4)).transpose(1, 2).transpose(1, 2).flatten(1),
    "parts": lambda y: torch.cat([y.chunk(2, -1)[1], y[..., :4]], -1), "same": lambda y: y + y.relu(),
    "format": lambda y: y.double().float(), "asked": lambda y: y.expand(y.size(0), -1),
}  # fmt: skip

STOPS = {
    "gelu": nn.functional.gelu, "relu6": nn.functional.relu6, "constant": lambda y: y + 1,
    "own square": lambda y: y * y,
    "norm": nn.functional.normalize, "softmax": lambda y: y.softmax(-1), "mean": lambda y: y - y.mean(-1, keepdim=True),
    "chosen": lambda y: y if y.sum().item() > 0 else 2 * y, "other order": lambda y: y + y.flip(-1),
    "written": lambda y: y.index_fill_(-1, torch.tensor([0]), 1.0), "mixed": lambda y: y @ torch.eye(8),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALES)
def test_channels_are_followed_through_functions_that_scale(name: str) -> None:
    link = links_of(Net(SCALES[name]).eval(), seeded((8, 6)))["first"]
    assert link.free.all()
    expected = {"order": torch.arange(8).flip(0), "parts": torch.arange(8).roll(4)}.get(name, torch.arange(8))
    assert torch.equal(link.readers["second"].long(), expected)


@pytest.mark.parametrize("name", STOPS)
def test_functions_that_do_not_scale_stop_them(name: str) -> None:
    assert not links_of(Net(STOPS[name]).eval(), seeded((8, 6)))


def test_convolutional_networks() -> None:
    links = links_of(randomized(ResNetCifar(8, 4)), seeded((2, 3, 8, 8)))
    assert {name: list(link.readers) for name, link in links.items()} == {
        f"layer{stage}.0.conv1": [f"layer{stage}.0.conv2"] for stage in (1, 2, 3)
    }
    merged = links_of(randomized(UNet(4)), seeded((2, 3, 8, 8)))["down0.3"].readers
    assert list(merged) == ["down1.0", "merge0.0"]
    assert merged["merge0.0"].tolist() == [NONE] * 4 + [0, 1, 2, 3]


def test_flattened_channels_have_several_readers_each() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2)).eval()
    assert links_of(model, seeded((2, 3, 6, 6)))["0"].readers["3"].tolist() == [0] * 4 + [1] * 4


def test_transformers() -> None:
    ids = torch.randint(0, 64, (4, 6), generator=torch.Generator().manual_seed(0))
    llama = links_of(tiny_transformer("llama"), ids)
    layer = "model.layers.0."
    assert list(llama[layer + "input_layernorm"].readers) == [f"{layer}self_attn.{part}_proj" for part in "qkv"]
    heads = llama[layer + "self_attn.v_proj"].readers[layer + "self_attn.o_proj"].reshape(4, 8)
    assert torch.equal(heads, torch.arange(16, dtype=torch.int32).reshape(2, 8).repeat_interleave(2, 0))
    assert list(llama[layer + "mlp.up_proj"].readers) == [layer + "mlp.down_proj"]
    assert layer + "mlp.gate_proj" not in llama
    gpt2 = links_of(tiny_transformer("gpt2"), ids)
    assert gpt2["transformer.h.0.attn.c_attn"].free.tolist() == [False] * 64 + [True] * 32
    assert "transformer.ln_f" not in gpt2  # its reader shares the table of the embedding
    assert not [name for name in links_of(tiny_transformer("bert"), ids) if "0.output.LayerNorm" in name]


def test_what_is_read_in_two_ways_or_given_out_is_not_free() -> None:
    class Twice(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.second(y) + self.second(y.flip(-1))

    class Given(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.first(x)
            return self.second(y), y

    for model in (Twice(None), Given(None)):
        assert not links_of(model.eval(), seeded((8, 6)))


def test_heads_are_bundles_and_sums_are_streams() -> None:
    flow = flow_of(tiny_transformer("llama"), torch.zeros(2, 6, dtype=torch.long))
    value = flow.sources["model.layers.0.self_attn.v_proj"]
    assert (flow.bundles[value.numbers] - value.first).tolist() == [0] * 8 + [8] * 8
    table, last = flow.sources["model.embed_tokens"], flow.sources["model.layers.1.mlp.down_proj"]
    assert torch.equal(flow.streams[last.numbers], torch.arange(32) + table.first)
