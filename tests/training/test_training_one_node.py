"""Where a convolution and its quantizers are one node of autograd, and where they are not."""

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte.adaptor.pytorch.modules.convolution import ConvolutionHandler
from subbyte.kernels.operator import is_native
from subbyte.training.gradients.lsq import Lsq

X = seeded((4, 4, 6, 6))
FOLDED_FIRST = {
    "op_type_dict": {
        "Conv2d": {"weight": {"dtype": ["int4"], "granularity": ["per_tensor"]}, "activation": {"dtype": ["uint4"]}}
    }
}


class OfAnotherKind(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return 2 * super()._conv_forward(x, weight, bias)


def nodes(y: Tensor) -> set[str]:
    """The names of all nodes behind y."""
    found, rest = set(), [y.grad_fn]
    while rest:
        node = rest.pop()
        if node is not None and node not in found:
            found.add(node)
            rest += [before for before, _ in node.next_functions]
    return {node.name() for node in found}


def prepared(convolution: nn.Module, config: object = "w4a4", **options: object) -> nn.Module:
    model = randomized(nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU()))
    return subbyte.prepare_qat(model, config, X, **options).train()


def convolution(**options: object) -> nn.Module:
    return nn.Conv2d(4, 8, 3, **{"padding": 1, **options})


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"groups": 2, "stride": 2}])
def test_a_convolution_with_learned_scales_is_one(options: dict[str, object]) -> None:
    found = nodes(prepared(convolution(**options))(X))
    assert ("_LearnedConvolutionBackward" in found) == is_native()
    assert ("ConvolutionBackward0" in found) != is_native()


@pytest.mark.parametrize(
    ("make", "config", "options"),
    [
        (lambda: convolution(padding="same"), "w4a4", {}),
        (lambda: convolution(padding_mode="circular"), "w4a4", {}),
        (convolution, "w4a4", {"training": {"weight": "ewgs"}}),
        (convolution, "w4a4", {"training": {"activation": "clipped"}}),
        (convolution, "w4", {}),
        (convolution, FOLDED_FIRST, {}),
    ],
)
def test_what_computes_otherwise_is_not(make: Callable[[], nn.Module], config: str, options: dict[str, object]) -> None:
    found = nodes(prepared(make(), config, **options)(X))
    assert "_LearnedConvolutionBackward" not in found
    assert "ConvolutionBackward0" in found


def test_autocast_is_not() -> None:
    model = prepared(convolution())
    with torch.autocast("cpu", torch.bfloat16):
        assert "_LearnedConvolutionBackward" not in nodes(model(X))


def test_a_single_image_is_not() -> None:
    layer = subbyte.prepare_qat(nn.Sequential(convolution()), "w4a4", X).train()
    assert ("_LearnedConvolutionBackward" in nodes(layer(X))) == is_native()
    assert "_LearnedConvolutionBackward" not in nodes(layer(X[0]))
    torch.testing.assert_close(layer(X[0]), layer(X)[0])


@pytest.mark.parametrize("sizes", [{"stride": 2}, {"padding": (1,), "stride": [2, 2]}, {"dilation": (2,)}])
def test_sizes_that_were_written_over(sizes: dict[str, object]) -> None:
    layer = convolution()
    for name, size in sizes.items():
        setattr(layer, name, size)
    model = subbyte.prepare_qat(nn.Sequential(layer), "w4a4", X).train()
    model(X).sum().backward()
    assert model[0].weight.grad is not None
    torch.testing.assert_close(model(X), model.eval()(X))


class Centred(Lsq):
    def reparametrized(self, weight: Tensor) -> Tensor:
        return weight - weight.mean()


class Following(Lsq):
    learns: ClassVar[tuple[str, ...]] = ()


@pytest.mark.parametrize("gradient", [Centred(), Following()])
def test_the_weight_is_the_one_that_its_gradient_says(gradient: Lsq) -> None:
    model = subbyte.prepare_qat(nn.Sequential(convolution()), "w4a4", X, training={"weight": gradient}).train()
    with torch.no_grad():
        model[0].weight.mul_(1.3)
    y = model(X)
    torch.testing.assert_close(y, model.eval()(X))
    y.sum().backward()
    of_weight = model[0].weight.grad
    assert (float(of_weight.sum().abs()) < 1e-3) == isinstance(gradient, Centred)


def test_a_convolution_that_computes_something_else_is_asked_for_it() -> None:
    handler = ConvolutionHandler("Conv2d", 2)
    assert not handler.takes_learned(OfAnotherKind(4, 8, 3), X)
    assert handler.takes_learned(nn.Conv2d(4, 8, 3), X)


def test_a_scale_that_is_no_number_is_named() -> None:
    for learned in ("0.weight_quantizer.scale", "scale"):
        model = prepared(convolution())
        name = next(name for name, _ in model.named_parameters() if name.endswith(learned))
        with torch.no_grad():
            model.get_parameter(name).fill_(torch.nan)
        with pytest.raises(subbyte.errors.TrainingError, match="is not finite"):
            model(X)
