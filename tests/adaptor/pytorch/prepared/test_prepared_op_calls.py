"""Calls of ops inside of blocks: the same as those of a forward of the whole model, of which less runs."""

from itertools import chain

import torch
from torch import nn

import subbyte
from networks import ResNetCifar, randomized, seeded, tiny_transformer
from subbyte.adaptor.pytorch.batch import batches
from subbyte.adaptor.pytorch.prepared import Call, PreparedModel


def _assert_same(one: Call, other: Call) -> None:
    assert torch.equal(one.input, other.input)
    assert torch.equal(one.result, other.result)
    assert one.quantizer is other.quantizer
    assert torch.equal(one.quantized_input, other.quantized_input)


def _assert_as_in_the_whole_model(model: nn.Module, data: list[torch.Tensor]) -> None:
    """Op after op, each changed before the next is asked for."""
    view = PreparedModel(model, list(batches(data)))
    view.keep_reference()
    for name, op in view.ops.items():
        if not op.handler.takes_activation:
            continue
        for ours, streamed in (
            (view.op_calls(name), view.quantized_calls(name)),
            (view.float_op_calls(name), view.float_calls(name)),
        ):
            found, expected = list(ours), list(chain.from_iterable(streamed))
            assert len(found) == len(expected) > 0
            for one, other in zip(found, expected, strict=True):
                _assert_same(one, other)
        op.write_weight(op.weight * 1.25)


def test_in_a_residual_net() -> None:
    data = list(seeded((8, 3, 8, 8)).split(4))
    _assert_as_in_the_whole_model(subbyte.prepare(randomized(ResNetCifar(8, 4)), "w4a4", data), data)


def test_in_a_transformer() -> None:
    tokens = [torch.randint(0, 50, (2, 6), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    _assert_as_in_the_whole_model(subbyte.prepare(tiny_transformer("gpt2"), "w4a8", tokens), tokens)


def test_only_the_block_of_the_op_runs() -> None:
    data = list(seeded((8, 3, 8, 8)).split(4))
    model = subbyte.prepare(randomized(ResNetCifar(8, 4)), "w4", data)
    view, runs = PreparedModel(model, list(batches(data))), []
    list(view.op_calls("layer2.0.conv1"))
    model.conv1.register_forward_hook(lambda *_: runs.append("conv1"))
    list(view.op_calls("layer2.0.conv2"))
    list(view.op_calls("layer3.0.conv1"))
    assert not runs
    view.forget_calls()
    list(view.op_calls("layer3.0.conv1"))
    assert runs
