"""rotate: the float function stays, outliers of the residual stream are spread."""

import copy
import importlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResNetCifar, randomized, seeded, tiny_transformer, tune_config
from subbyte import TensorSpec
from subbyte.adaptor.pytorch.state import state_of
from subbyte.errors import ConfigError

WEIGHTS = [
    TensorSpec("int4", granularity="per_channel"),
    TensorSpec("uint3", "asym", "per_group(8)"),
    TensorSpec("nf4", granularity="per_tensor"),
    TensorSpec("ternary"),
    TensorSpec("bint1"),
]


class Layer(nn.Module):
    """Linear maps behind a norm, beside a shortcut."""

    def __init__(self, size: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm(size), nn.Linear(size, 20), nn.Linear(20, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class PreNorm(nn.Module):
    """An embedding, two layers, a norm, and a head that may share the embedding's table."""

    def __init__(self, size: int, norm: type[nn.Module], *, tied: bool = False, shown: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, size)
        self.layers = nn.Sequential(Layer(size, norm), Layer(size, norm))
        self.norm, self.head, self.shown = norm(size), nn.Linear(size, 30, bias=False), shown
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.layers(self.embed(ids))
        y = self.head(self.norm(x))
        return (y, x) if self.shown else y


def pre_norm(size: int = 16, norm: type[nn.Module] = nn.RMSNorm, **options: bool) -> PreNorm:
    torch.manual_seed(0)
    model = PreNorm(size, norm, **options)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.RMSNorm | nn.LayerNorm):
                module.weight.uniform_(0.5, 2)
                if getattr(module, "bias", None) is not None:
                    module.bias.normal_()
    return model.eval()


def tokens(vocabulary: int = 30) -> Tensor:
    return torch.randint(0, vocabulary, (16, 6), generator=torch.Generator().manual_seed(0))


def in_float(model: nn.Module, ids: Tensor) -> Tensor:
    state_of(model).run.phase = "bypass"
    with torch.no_grad():
        y = model(ids)
    state_of(model).run.phase = "quantize"
    return getattr(y, "logits", y)


@pytest.mark.parametrize("size", [16, 18, 24], ids=lambda size: f"size {size}")
@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm], ids=lambda norm: norm.__name__)
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
def test_the_float_function_stays(size: int, norm: type[nn.Module], tied: bool) -> None:
    model, ids = pre_norm(size, norm, tied=tied), tokens()
    before = copy.deepcopy(model.state_dict())
    prepared = subbyte.prepare(model, "w4a8", ids, recover=["rotate"])
    wanted = model(ids).detach()
    assert (in_float(prepared, ids) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert not torch.allclose(prepared.embed.weight, model.embed.weight)
    assert (prepared.norm.weight == 1).all()
    assert torch.equal(subbyte.convert(prepared)(ids), prepared(ids))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    again = subbyte.prepare(model, "w4a8", ids, recover=["rotate"])
    assert torch.equal(again(ids), prepared(ids))
    other = subbyte.prepare(model, "w4a8", ids, recover=["rotate"], seed=1)
    assert not torch.equal(other.embed.weight, prepared.embed.weight)


def test_the_stream_is_turned_as_a_whole() -> None:
    """What flows between the layers is the float model's, times one orthogonal matrix."""
    model, ids = pre_norm(), tokens()
    prepared = subbyte.prepare(model, "w4", ids, recover=["rotate"])
    rotation = torch.linalg.lstsq(
        model.embed.weight.detach().double(), prepared.embed.weight.detach().double()
    ).solution
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(16).double(), rtol=0, atol=1e-5)
    assert torch.allclose(rotation.abs(), torch.tensor(0.25).double(), atol=1e-5)  # Hadamard: all of one size
    state_of(prepared).run.phase = "bypass"
    seen = [part.layers(part.embed(ids)).detach().double() for part in (model, prepared)]
    torch.testing.assert_close(seen[1], seen[0] @ rotation, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_every_kind_of_weight(weight: TensorSpec) -> None:
    model, ids = pre_norm(tied=True), tokens()
    prepared = subbyte.prepare(model, tune_config(model, ids, weight, None, "weight_only"), ids, recover=["rotate"])
    wanted = model(ids).detach()
    assert (in_float(prepared, ids) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert torch.equal(subbyte.convert(prepared)(ids), prepared(ids))


def test_planted_outliers_gain_much() -> None:
    model, ids = pre_norm(64), tokens()
    with torch.no_grad():
        for norm in (model.layers[0].norm, model.layers[1].norm, model.norm):
            norm.weight[:2] *= 50
        model.embed.weight[:, :2] /= 50  # what is large in the norm is no larger behind it in what counts
        for op in (model.layers[0].up, model.layers[1].up, model.head):
            op.weight[:, :2] /= 10
    with torch.no_grad():
        error = [
            float((subbyte.quantize(model, "w8a4", ids, recover=recover)(ids) - model(ids)).square().mean())
            for recover in (None, "rotate")
        ]
    assert error[1] < error[0] / 2


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_transformers_go_on_where_they_were_interrupted_and_are_saved(name: str, tmp_path: Path) -> None:
    model, ids = tiny_transformer(name), tokens(64)
    prepared = subbyte.prepare(model, "w4a8", ids, recover=["rotate"], resume=tmp_path / "run")
    wanted = model(ids).logits.detach()
    assert (in_float(prepared, ids) - wanted).abs().max() <= 1e-4 * wanted.abs().max()
    again = subbyte.prepare(model, "w4a8", ids, recover=["rotate"], resume=tmp_path / "run")
    assert torch.equal(again(ids).logits, prepared(ids).logits)
    converted = subbyte.convert(prepared)
    subbyte.save(converted, tmp_path / "model")
    loaded = subbyte.load(tmp_path / "model", model)
    assert torch.equal(loaded(ids).logits, prepared(ids).logits)


def test_heads_are_turned_each_by_itself() -> None:
    model, ids = tiny_transformer("llama"), tokens(64)
    whole, without = (
        subbyte.prepare(model, "w4", ids, recover={"rotate": {"heads": heads}}).model.layers[0].self_attn
        for heads in (True, False)
    )
    first, second = without.v_proj.weight.detach().double(), whole.v_proj.weight.detach().double()
    for head in (slice(0, 8), slice(8, 16)):
        turned = torch.linalg.lstsq(first[head].T, second[head].T)
        torch.testing.assert_close(first[head].T @ turned.solution, second[head].T, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(first, second)


def test_an_own_llama_with_rotary_embedding_and_a_tied_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks" / "networks"))
    llama = importlib.import_module("llama")
    torch.manual_seed(0)
    config = llama.LlamaConfig(dim=24, hidden=40, layers=2, heads=4, kv_heads=2, vocab=64, seq=32)
    model, ids = llama.Llama(config).eval(), tokens(64)
    prepared = subbyte.prepare(model, "w4:g8", ids, recover=["rotate"])
    wanted = model(ids).detach()
    assert (in_float(prepared, ids) - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_models_that_cannot_be_turned_say_why() -> None:
    ids = tokens(64)
    with pytest.raises(ConfigError, match="post-norm"):
        subbyte.prepare(tiny_transformer("bert"), "w4", ids, recover=["rotate"])
    with pytest.raises(ConfigError, match="BatchNorm"):
        subbyte.prepare(randomized(ResNetCifar(8, 4)), "w4a4", seeded((8, 3, 8, 8)), recover=["rotate"])
    with pytest.raises(ConfigError, match="returned"):
        subbyte.prepare(pre_norm(shown=True), "w4", tokens(), recover=["rotate"])
    model = tiny_transformer("bert")
    prepared = subbyte.prepare(model, "w4", ids, recover={"rotate": {"unsupported": "skip"}})
    wanted = model(ids).logits.detach()
    assert (in_float(prepared, ids) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
