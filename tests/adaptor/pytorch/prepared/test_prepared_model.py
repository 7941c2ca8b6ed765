"""What methods see of a prepared model."""

import copy
import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import subbyte
from networks import ResidualNet, ResNetCifar, UNet, randomized, seeded, tiny_transformer
from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.numerics import quantize
from subbyte.spec import QuantParams


def _prepared(model: nn.Module, precision: str, *batches: Tensor) -> PreparedModel:
    return PreparedModel(subbyte.prepare(model.eval(), precision, list(batches)), [Batch.of(x) for x in batches])


@pytest.fixture
def model() -> PreparedModel:
    return _prepared(randomized(ResNetCifar(8, 4)), "w4a4", seeded((4, 3, 8, 8)), seeded((4, 3, 8, 8), 1))


def test_blocks_hold_every_op_once_in_order(model: PreparedModel) -> None:
    assert model.blocks() == ["conv1", "layer1.0", "layer2.0", "layer3.0", "linear"]
    held = [op for block in model.blocks() for op in model.ops_of(block)]
    assert held == list(model.ops)


def test_blocks_of_other_networks() -> None:
    unet = _prepared(randomized(UNet()), "w8a8", seeded((2, 3, 8, 8)))
    assert unet.blocks() == ["down0", "down1", "middle", "up1", "merge1", "up0", "merge0", "head"]
    for name in ("bert", "gpt2", "llama"):
        model = _prepared(tiny_transformer(name), "w8", torch.arange(8)[None])
        held = [op for block in model.blocks() for op in model.ops_of(block)]
        assert sorted(held) == sorted(model.ops)
        assert len(model.blocks()) < len(model.ops)


def test_reference_stays_as_it_was(model: PreparedModel) -> None:
    x = seeded((4, 3, 8, 8))
    reference = model.keep_reference()
    with torch.no_grad():
        before, float_output = model.model(x), reference(x)
    for op in model.ops.values():
        op.write_weight(op.weight * 2)
        op.shift_output(torch.ones(op.handler.output_channels(op.module)))
    with torch.no_grad():
        assert torch.equal(reference(x), float_output)
        assert not torch.equal(model.model(x), before)
    assert model.reference is reference


def test_reference_is_the_float_model() -> None:
    float_model, x = randomized(ResNetCifar(8, 4)), seeded((4, 3, 8, 8))
    model = _prepared(float_model, "w4a4", x)
    with torch.no_grad():
        assert torch.allclose(model.reference(x), float_model(x), atol=1e-4)


def test_codes_survive_writing_the_quantized_weight() -> None:
    x = seeded((4, 3, 6, 6))
    for precision in ("w4a8", "w2a8", "wternarya8", "wnf4a8", "wbint1a8", "w3:g4"):
        model = _prepared(randomized(ResidualNet()), precision, x)
        with torch.no_grad():
            before = model.model(x)
        for op in model.ops.values():
            codes = quantize(op.weight, op.params, op.spec)
            op.write_weight(op.quantized())
            assert torch.equal(quantize(op.weight, op.params, op.spec), codes)
        with torch.no_grad():
            assert torch.equal(model.model(x), before)


def test_per_tensor_weights_are_written_unfolded() -> None:
    x = seeded((4, 3, 8, 8))
    config = {"op_type_dict": {"Conv2d": {"weight": {"granularity": ["per_tensor"]}}}}
    prepared = subbyte.prepare(randomized(ResNetCifar(8, 4)), config, x)
    op = PreparedModel(prepared, [Batch.of(x)]).ops["layer1.0.conv1"]
    wanted = op.quantized()
    op.write_weight(wanted)
    assert torch.allclose(op.weight, wanted, rtol=1e-6)
    assert torch.equal(op.quantized(), wanted)


def test_shift_output_with_and_without_norm(model: PreparedModel) -> None:
    x = seeded((4, 3, 8, 8))
    for name in ("conv1", "linear"):
        op = model.ops[name]
        shift = torch.linspace(-1, 1, op.handler.output_channels(op.module))
        (before,) = next(model.quantized_calls(name))
        op.shift_output(shift)
        (after,) = next(model.quantized_calls(name))
        expected = before.result + (shift.view(-1, 1, 1) if name == "conv1" else shift)
        assert torch.allclose(after.result, expected, atol=1e-5)
    assert torch.equal(subbyte.convert(model.model)(x), model.model(x))


def test_shift_of_an_op_without_bias_gives_it_one() -> None:
    x = seeded((4, 6))
    model = _prepared(nn.Sequential(nn.Linear(6, 3, bias=False)), "w8a8", x)
    with torch.no_grad():
        before = model.model(x)
        model.ops["0"].shift_output(torch.ones(3))
        assert torch.allclose(model.model(x), before + 1, atol=1e-6)
    converted = subbyte.convert(model.model)
    with torch.no_grad():
        assert torch.equal(converted(x), model.model(x))


def test_calls_are_met_batch_by_batch_and_leave_no_hook(model: PreparedModel) -> None:
    quantized, floats = list(model.quantized_calls("layer2.0")), list(model.float_calls("layer2.0"))
    assert [len(calls) for calls in quantized] == [len(calls) for calls in floats] == [1, 1]
    assert quantized[0][0].input.shape == (4, 4, 8, 8)
    assert quantized[0][0].result.shape == floats[0][0].result.shape == (4, 8, 4, 4)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.model.modules())


def test_a_module_called_twice_gives_two_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.layer(self.layer(x)))

    model = _prepared(randomized(Twice()), "w8a8", seeded((3, 4)), seeded((3, 4), 1))
    assert [len(calls) for calls in model.quantized_calls("layer")] == [2, 2]


def test_recalibrate_finds_what_prepare_found(model: PreparedModel) -> None:
    before = copy.deepcopy(model.model.state_dict())
    for op in model.ops.values():
        op.quantizer.scale.mul_(3)
    model.recalibrate()
    after = model.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


class TestBlockCalls:
    """What is passed on from block to block is what whole forwards would show."""

    def _check(self, model: PreparedModel) -> set[str]:
        linked = set(model._links())
        for block in model.blocks():
            quantized, floats = model.block_calls(block)
            for found, calls in ((quantized, model.quantized_calls(block)), (floats, model.float_calls(block))):
                for one, other in zip(found, [call for each in calls for call in each], strict=True):
                    leaves = zip(
                        tree_leaves((one.args, one.kwargs)), tree_leaves((other.args, other.kwargs)), strict=True
                    )
                    for x, y in leaves:
                        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y
            for one, other in zip(floats, [call for each in model.float_calls(block) for call in each], strict=True):
                assert torch.equal(one.result, other.result)
            for op in model.ops_of(block):  # as a method would change it
                model.ops[op].write_weight(model.ops[op].quantized() * 0.9)
        return linked

    def test_residual_blocks(self, model: PreparedModel) -> None:
        assert self._check(model) == {"layer2.0", "layer3.0"}

    def test_transformers(self) -> None:
        for name in ("bert", "gpt2", "llama"):
            prepared = _prepared(tiny_transformer(name), "w4", *(torch.randint(0, 50, (2, 8)) for _ in range(2)))
            with prepared.without_cache():
                assert self._check(prepared)

    def test_a_value_written_to_on_the_way(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b, self.c = (nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))

            def forward(self, x: Tensor) -> Tensor:
                y = self.a(x)
                y += 1
                return self.c(self.b(y))

        model = _prepared(randomized(Net()), "w4a4", seeded((3, 4)), seeded((3, 4), 1))
        assert self._check(model) == {"c"}

    def test_only_one_block_is_kept(self) -> None:
        ids = [torch.randint(0, 50, (2, 8)) for _ in range(2)]
        model = _prepared(tiny_transformer("llama"), "w4", *ids)
        alive: list[weakref.ref[Tensor]] = []
        with model.without_cache():
            for block in model.blocks():
                quantized, floats = model.block_calls(block)
                inputs = [call.input for call in (*quantized, *floats) if call.input.is_floating_point()]
                before, alive = alive, [weakref.ref(x) for x in inputs]
                del quantized, floats, inputs
                gc.collect()
                assert not any(one() is not None for one in before)


def test_ops_that_share_a_weight_may_have_scales_of_their_own(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.table(ids).relu())

    ids = torch.randint(0, 20, (4, 6))
    model = _prepared(randomized(Tied()), "w4", ids)
    op = model.ops["head"]
    op.write_params(QuantParams(op.params.scale * 0.8, op.params.zero_point))
    converted = subbyte.convert(model.model)
    subbyte.save(converted, tmp_path / "tied.safetensors")
    loaded = subbyte.load(tmp_path / "tied.safetensors", Tied())
    with torch.no_grad():
        assert torch.equal(converted(ids), model.model(ids))
        assert torch.equal(loaded(ids), model.model(ids))
