"""reconstruct: blocks that give what they gave in float."""

import pytest
import torch
from torch import nn

import subbyte
from networks import ResidualNet, ResNetCifar, UNet, cifar_images, randomized, real_resnet20, seeded, tiny_transformer
from subbyte import RecoveryError
from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.algorithms.drops import Drops
from subbyte.algorithms.learned_range import LearnedRange
from subbyte.algorithms.reconstruct import Reconstruct
from subbyte.algorithms.soft_rounding import SoftRounding, sharpness_at
from subbyte.numerics import neighbours

QUICK = Reconstruct(steps=20, batch_size=8)


def _prepared(model: nn.Module, precision: str, x: torch.Tensor) -> PreparedModel:
    return PreparedModel(subbyte.prepare(model.eval(), precision, x), [Batch.of(x)])


def _error(float_model: nn.Module, model: nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        return float((float_model(x) - model(x)).square().mean())


SOFT = Reconstruct(steps=150, batch_size=8, rounding="soft", learning_rate=0.1)


@pytest.mark.parametrize(
    ("precision", "method"),
    [
        *((each, QUICK) for each in ("w2a8", "w3a3", "wternarya8", "wnf4a4", "wbint1a8", "w2:g4", "w2a8:dynamic")),
        *((each, SOFT) for each in ("w2a8", "wnf4a4")),
    ],
)
def test_output_comes_nearer_to_float(precision: str, method: Reconstruct) -> None:
    model, x = randomized(ResNetCifar(8, 8)).eval(), seeded((32, 3, 8, 8))
    plain = subbyte.quantize(model, precision, x)
    recovered = subbyte.prepare(model, precision, x, recover=[method])
    assert _error(model, recovered, x) < 0.8 * _error(model, plain, x)
    with torch.no_grad():
        assert torch.equal(subbyte.convert(recovered)(x), recovered(x))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_transformers(name: str) -> None:
    model = tiny_transformer(name).eval()
    x = torch.randint(0, 50, (16, 8), generator=torch.Generator().manual_seed(0))
    options = {"reconstruct": {"steps": 10, "batch_size": 8, "unsupported": "skip"}}
    plain, recovered = subbyte.prepare(model, "w2a8", x), subbyte.prepare(model, "w2a8", x, recover=options)

    def error(other: nn.Module) -> float:
        with torch.no_grad():
            return float((next(iter(model(x).values())) - next(iter(other(x).values()))).square().mean())

    assert error(recovered) < error(plain)


def test_networks_with_skips_across_blocks() -> None:
    model, x = randomized(UNet()).eval(), seeded((16, 3, 8, 8))
    plain = subbyte.quantize(model, "w3a4", x)
    recovered = subbyte.prepare(model, "w3a4", x, recover=[QUICK])
    assert _error(model, recovered, x) < _error(model, plain, x)


def test_only_scales_of_the_block_itself_are_learned() -> None:
    model = _prepared(randomized(UNet()), "w3a4", seeded((16, 3, 8, 8)))
    before = {name: quantizer.scale.clone() for name, quantizer in model.input_quantizers.items()}
    QUICK.apply(model, "down1", torch.Generator().manual_seed(0))
    changed = {
        name for name, quantizer in model.input_quantizers.items() if not torch.equal(quantizer.scale, before[name])
    }
    inside = {key for op in model.ops_of("down1") for key in model.state.input_keys[op]}
    assert changed
    assert changed <= inside


def test_a_block_that_would_get_worse_stays_as_it_was() -> None:
    model = _prepared(randomized(ResidualNet()), "w8a8", seeded((16, 3, 6, 6)))
    harmful = Reconstruct(steps=3, batch_size=1, learning_rate=50.0, scale_learning_rate=0.5)
    first = model.blocks()[0]
    with torch.no_grad():
        before = model.model(seeded((16, 3, 6, 6)))
    harmful.apply(model, first, torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.model(seeded((16, 3, 6, 6))), before)


def test_of_the_first_block_only_its_weights_change() -> None:
    model = _prepared(randomized(ResidualNet()), "w2a8:minmax", seeded((16, 3, 6, 6)))
    first = model.blocks()[0]
    before = {name: op.weight.clone() for name, op in model.ops.items()}
    QUICK.apply(model, first, torch.Generator().manual_seed(0))
    changed = {name for name, op in model.ops.items() if not torch.equal(op.weight, before[name])}
    assert changed == set(model.ops_of(first))
    assert not any(module.training for module in model.model.modules())
    assert all(parameter.requires_grad for parameter in model.model.parameters())


def test_a_weight_that_others_share_is_left_alone() -> None:
    model = tiny_transformer("gpt2").eval()  # embedding and head are one parameter
    ids = torch.randint(0, 50, (16, 8), generator=torch.Generator().manual_seed(0))
    with pytest.raises(RecoveryError, match=r"its weight is that of 'transformer.wte' too"):
        subbyte.prepare(model, {"precision": "w3", "op_type_dict": {"Embedding": "fp32"}}, ids, recover=[QUICK])
    options = {"reconstruct": {"steps": 3, "unsupported": "skip"}}
    recovered = subbyte.prepare(model, "w3", ids, recover=options)
    assert torch.equal(recovered.lm_head.weight, model.lm_head.weight)  # type: ignore[union-attr,arg-type]


class TestSoftRounding:
    def test_begins_at_the_weight_and_ends_on_the_grid(self) -> None:
        model = _prepared(randomized(ResidualNet()), "w3a8", seeded((16, 3, 6, 6)))
        op = next(iter(model.ops.values()))
        weight, (below, above) = op.weight, neighbours(op.weight, op.params, op.spec)
        rounding = SoftRounding(op)
        # A choice is kept 0.01 of a step from both ends, where its gradient would vanish.
        inside = (weight > below) & (weight < above)
        assert bool(((rounding(weight) - weight).abs() <= 0.0101 * (above - below))[inside].all())
        with torch.no_grad():
            rounding.learned.copy_(torch.where(torch.rand(weight.shape) < 0.5, -5.0, 5.0))
            expected = torch.where(rounding.learned > 0, above, below)
            assert torch.allclose(rounding(weight), expected)
            assert float(rounding.penalty(1.0)) < 1e-6
        rounding.finish(op)
        assert torch.allclose(op.weight, expected)
        assert torch.equal(op.quantized(), op.weight)

    def test_learned_scales_are_written(self) -> None:
        model = _prepared(randomized(ResidualNet()), "w3a8", seeded((16, 3, 6, 6)))
        op = next(iter(model.ops.values()))
        scale = op.params.scale.clone()
        rounding = SoftRounding(op)
        with torch.no_grad():
            rounding.factor.mul_(1.25)
        rounding.finish(op)
        assert torch.equal(op.params.scale, scale * 1.25)
        assert torch.allclose(op.quantized(), op.weight, rtol=1e-6)

    def test_sharpness_falls(self) -> None:
        values = [sharpness_at(progress) for progress in (0, 0.1, 0.2, 0.6, 1.0)]
        assert values == pytest.approx([20, 20, 20, 11, 2])


class TestDrops:
    def test_share_and_gradient(self) -> None:
        drops = Drops(0.25, torch.Generator().manual_seed(0))
        kept, other = torch.ones(100, 200, requires_grad=True), torch.zeros(100, 200, requires_grad=True)
        mixed = drops.mix(kept, other)
        assert float(mixed.detach().mean()) == pytest.approx(0.25, abs=0.02)
        mixed.sum().backward()
        assert kept.grad is not None
        assert other.grad is not None
        assert torch.equal(kept.grad, mixed)
        assert torch.equal(other.grad, 1 - mixed)
        assert not torch.equal(drops.mix(kept, other), mixed)

    def test_keeping_all(self) -> None:
        kept = torch.ones(3)
        assert Drops(1.0, torch.Generator()).mix(kept, torch.zeros(3)) is kept


def test_learned_range_writes_its_scale() -> None:
    model = _prepared(randomized(ResidualNet()), "w3a4", seeded((16, 3, 6, 6)))
    quantizer = next(iter(model.input_quantizers.values()))
    learned = LearnedRange(quantizer, Drops(1.0, torch.Generator()), learns=True)
    x = seeded((4, 3, 6, 6))
    assert torch.equal(learned(x), quantizer(x))
    learned(x).square().sum().backward()
    assert learned.factor.grad is not None
    with torch.no_grad():
        learned.factor.mul_(0.5)
    quantizer.set_params(learned.params())
    assert torch.equal(learned(x), quantizer(x))


def test_real_network() -> None:
    model, x = real_resnet20().eval(), cifar_images(32)
    plain = subbyte.prepare(model, "w2a8", x, first_last="int8")
    recovered = subbyte.prepare(
        model, "w2a8", x, first_last="int8", recover=[{"reconstruct": {"steps": 10, "batch_size": 8}}]
    )
    assert _error(model, recovered, x) < 0.5 * _error(model, plain, x)


@pytest.mark.parametrize("threads", [1, 2])
def test_reconstruct_is_repeatable_for_one_seed_and_number_of_threads(threads: int) -> None:
    model, x, before = randomized(ResidualNet()), seeded((32, 3, 16, 16)), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = [
            subbyte.prepare(model, "w3a4", x, recover=[{"reconstruct": {"steps": 2}}], seed=seed).state_dict()
            for seed in (1, 1, 2)
        ]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(value, results[1][key]) for key, value in results[0].items())
    assert not all(torch.equal(value, results[2][key]) for key, value in results[0].items())
