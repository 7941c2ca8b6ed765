"""Each gradient against its published formula, computed here value by value."""

from math import sqrt

import pytest
import torch
from torch import Tensor

from networks import seeded
from subbyte.errors import ConfigError
from subbyte.numerics import fake_quantize
from subbyte.spec import QuantParams, TensorSpec
from subbyte.training import Gradient, Point, Slopes, as_gradient, register_gradient, registered_gradients
from subbyte.training.gradients.sign import SignGradient

X = 3 * seeded((6, 40), 1)
UP = seeded((6, 40), 2)
SPECS = {
    "per_tensor": (TensorSpec("int3"), ()),
    "per_channel": (TensorSpec("int3", granularity="per_channel", axis=0), (6, 1)),
    "per_group(8)": (TensorSpec("int3", granularity="per_group(8)", axis=1), (6, 5)),
}
EVERY = ["straight_through", "clipped", "lsq", "lsq_plus", "pact", "dorefa", "ewgs"]


def _scales(shape: tuple[int, ...]) -> Tensor:
    return 0.5 + torch.arange(torch.Size(shape).numel()).reshape(shape) / 100


def _run(
    gradient: Gradient,
    spec: TensorSpec,
    shape: tuple[int, ...],
    values: float = 40.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """The value, and the gradients of x and scale (zero where there is none)."""
    x = X.to(dtype, copy=True).requires_grad_()
    scale = _scales(shape).requires_grad_()
    params = QuantParams(scale, torch.zeros((), dtype=torch.int32))
    y = gradient.fake_quantize(x, params, spec, values)
    (y * UP.to(dtype)).sum().backward()
    return y.detach(), x.grad, torch.zeros(shape) if scale.grad is None else scale.grad


def _by_hand(name: str, spec: TensorSpec, shape: tuple[int, ...], values: float = 40.0) -> tuple[Tensor, Tensor]:
    """The gradients of x and scale, in float64, one value after the other."""
    scale = _scales(shape).double()
    of_x, of_scale = torch.zeros_like(X, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    g = 1 / sqrt(values * 4)
    for i in range(6):
        for j in range(40):
            at = {0: (), 2: (i, j // 8 if shape[-1:] == (5,) else 0)}[len(shape)]
            v, up = float(X[i, j] / scale[at].float()), float(UP[i, j])
            q = min(max(round(v), -4), 3)
            inside = -4 <= v <= 3
            if name == "straight_through":
                dx, ds = up, 0.0
            elif name == "clipped":  # as torch.fake_quantize_per_tensor_affine has it
                dx, ds = up * (-4.5 <= v <= 3.5), 0.0
            elif name == "dorefa":
                dx, ds = up * inside, 0.0
            elif name == "pact":
                dx, ds = up * inside, up * q * (not inside)
            else:
                f = 1 + 1e-3 * (1 if up > 0 else -1) * (v - q) / 7 if name == "ewgs" else 1
                dx, ds = up * f * inside, g * up * (q - f * v * inside)
            of_x[i, j] = dx
            of_scale[at] += ds
    return of_x, of_scale


@pytest.mark.parametrize("granularity", list(SPECS))
@pytest.mark.parametrize("name", [name for name in EVERY if name != "lsq_plus"])
def test_gradients_are_the_published_ones(name: str, granularity: str) -> None:
    spec, shape = SPECS[granularity]
    y, of_x, of_scale = _run(as_gradient(name), spec, shape)
    scale = _scales(shape)
    assert torch.equal(y, fake_quantize(X, QuantParams(scale, torch.zeros((), dtype=torch.int32)), spec))
    want_x, want_scale = _by_hand(name, spec, shape)
    torch.testing.assert_close(of_x.double(), want_x, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(of_scale.double(), want_scale, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_half_precision_in_and_out(name: str) -> None:
    spec = TensorSpec("uint3") if name == "lsq_plus" else SPECS["per_tensor"][0]
    y, of_x, _ = _run(as_gradient(name), spec, (), dtype=torch.bfloat16)
    assert y.dtype == of_x.dtype == torch.bfloat16


def test_lsq_plus_moves_the_range_as_a_step_of_beta_would() -> None:
    spec = TensorSpec("uint3", scheme="asym")
    x = torch.tensor([-9.0, 0.5, 1.0, 9.0], requires_grad=True)
    up = torch.tensor([1.0, 2.0, 3.0, 5.0])
    scale, zero_point = torch.tensor(0.5, requires_grad=True), torch.tensor(2.3, requires_grad=True)
    y = as_gradient("lsq_plus").fake_quantize(x, QuantParams(scale, zero_point), spec, 4.0)
    assert torch.equal(y, torch.tensor([-1.0, 0.5, 1.0, 2.5]))  # codes 0, 3, 4, 7 around 2
    (y * up).sum().backward()
    g = 1 / sqrt(4 * 7)
    assert torch.equal(x.grad, torch.tensor([0.0, 2.0, 3.0, 0.0]))
    torch.testing.assert_close(scale.grad, torch.tensor(g * (1 * -2 + 5 * 5)))
    beta = g * (1 + 5)
    torch.testing.assert_close(zero_point.grad, torch.tensor(-beta / 0.5))


@pytest.mark.parametrize("bits", range(1, 9))
def test_lsq_plus_needs_a_zero_point_that_is_not_kept_at_0(bits: int) -> None:
    gradient = as_gradient("lsq_plus")
    assert "scheme sym keeps at 0" in gradient.obstacle(TensorSpec(f"int{bits}", granularity="per_channel"))
    assert not gradient.obstacle(TensorSpec(f"uint{bits}"))
    assert not gradient.obstacle(TensorSpec(f"int{bits}", scheme="asym"))


def test_dorefa_brings_weights_into_its_range() -> None:
    gradient, weight = as_gradient("dorefa"), seeded((4, 5))
    bounded = gradient.reparametrized(weight)
    torch.testing.assert_close(bounded, weight.tanh() / weight.tanh().abs().max())
    found = gradient.start(QuantParams(torch.rand(4, 1), torch.zeros((), dtype=torch.int32)), TensorSpec("int4"))
    assert torch.equal(found.scale, torch.full((4, 1), 1 / 7))


def test_a_gradient_of_ones_own() -> None:
    @register_gradient("tanh_like")
    class TanhLike(Gradient):
        sharpness: float = 2.0

        def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
            return Slopes(gradient * (1 - (self.sharpness * at.steps).tanh().square()))

    _, of_x, of_scale = _run(as_gradient({"tanh_like": {"sharpness": 1.0}}), *SPECS["per_tensor"])
    torch.testing.assert_close(of_x, UP * (1 - (X / 0.5).tanh() ** 2))
    assert of_scale == 0


@pytest.mark.parametrize("base", ["lsq", "lsq_plus", "ewgs"])
def test_another_way_back_of_one_that_has_kernels(base: str) -> None:
    class Tenfold(type(as_gradient(base))):
        def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
            return Slopes(10 * gradient, gradient)

    _, of_x, of_scale = _run(Tenfold(), *SPECS["per_tensor"])
    assert torch.equal(of_x, 10 * UP)
    torch.testing.assert_close(of_scale, UP.sum() / sqrt(40 * 4))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("lsk", "gradient 'lsk' is unknown; did you mean 'lsq'"),
        ({"ewgs": {"dalta": 1}}, "gradient 'ewgs': unknown option 'dalta'; did you mean 'delta'"),
        ({"ewgs": {"delta": -1}}, "gradient 'ewgs': delta: input should be greater than or equal to 0"),
        (3, "a gradient is a name"),
    ],
)
def test_what_is_no_gradient(asked: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_gradient(asked)


def test_pact_learns_from_what_lies_on_the_clipping_value() -> None:
    x = torch.tensor([-1.0, 0.0, 1.4, 1.5, 1.6], requires_grad=True)
    scale, up = torch.tensor(0.5, requires_grad=True), torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    params = QuantParams(scale, torch.zeros((), dtype=torch.int32))
    (as_gradient("pact").fake_quantize(x, params, TensorSpec("uint2"), 5.0) * up).sum().backward()
    assert float(scale.grad) == 3 * (8 + 16)  # alpha = 3 scale = 1.5: dalpha = sum of dy where x >= alpha
    assert torch.equal(x.grad, torch.tensor([0.0, 2.0, 4.0, 8.0, 0.0]))


def test_a_gradient_that_does_not_say_how_it_goes_back_is_not_registered() -> None:
    class Nothing(Gradient):
        pass

    class NoSlope(SignGradient):
        pass

    with pytest.raises(ConfigError, match="'nothing' does not say how it goes back: define slopes, or fake_quantize"):
        register_gradient("nothing")(Nothing)
    with pytest.raises(ConfigError, match="'no_slope' lacks slope"):
        register_gradient("no_slope")(NoSlope)
    assert not {"nothing", "no_slope"} & set(registered_gradients())
