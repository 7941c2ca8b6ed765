"""Quantized ops computed again with int64, from the definition, sharing no code with what is tested.

`y = (sum (qx - zx)(qw - zw)) * (sx * sw) + b`: the sum in int64, one fp32 multiply, one fp32 add.
"""

from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from subbyte import TensorSpec

TYPES = ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")


def codes_and_params(x: Tensor, quantizer: Any) -> tuple[Tensor, Tensor]:
    """(qx - zx) as int64, and the scale, of what an input quantizer says of x."""
    spec = quantizer.spec
    values = spec.dtype.values
    if values is not None:
        assert all(float(value).is_integer() for value in values)
        table = torch.tensor(values)
        distance = (x.float()[..., None] / quantizer.scale - table).abs()
        ranks = [int(i) for i in table.argsort(descending=True)]  # the upper of two equally near
        nearest = distance[..., ranks].argmin(-1)
        return table[ranks][nearest].long(), quantizer.scale
    if hasattr(quantizer, "calibrated"):
        scale, zero = quantizer.scale, quantizer.zero_point
    else:
        scale, zero = dynamic_params(x.float(), spec)
    codes = torch.clamp(torch.round(x.float() / scale) + zero, spec.qmin, spec.qmax)
    assert codes.numel() == 0 or (codes.min() >= spec.qmin and codes.max() <= spec.qmax)
    return codes.long() - zero.long(), scale


def dynamic_params(x: Tensor, spec: TensorSpec) -> tuple[Tensor, Tensor]:
    """minmax of a tensor, or of each of its rows, as DESIGN's Numerics define scale and zero point."""
    if spec.granularity.kind == "per_token":
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    else:
        low, high = x.amin(), x.amax()
    qmin, qmax = spec.qmin, spec.qmax
    if spec.scheme == "asym":
        low, high = low.clamp(max=0), high.clamp(min=0)
        scale = high / (qmax - qmin) - low / (qmax - qmin)
        return scale, torch.clamp(torch.round(qmin - low / scale), qmin, qmax).int()
    if qmin < 0:
        zero = torch.zeros_like(low)
        scale = torch.maximum(low / qmin, high / qmax if qmax else torch.zeros_like(high))
        absolute = torch.maximum(low.abs(), high.abs()) / max(qmax, -qmin)
        return torch.where(scale > 0, scale, absolute), zero.int()
    zero = torch.where(low < 0, (qmin + qmax + 1) // 2, qmin).int()
    upper = torch.where(zero < qmax, high / (qmax - zero), 0)
    lower = torch.where(zero > qmin, low / (qmin - zero), 0)
    return torch.maximum(upper, lower), zero


def linear_map(module: Any, kind: str, x: Tensor, weight: Tensor, extra: tuple[Any, ...] = ()) -> Tensor:
    """The exact int64 sums of a Linear, Conv or ConvTranspose module without bias."""
    if kind == "Linear":
        return x @ weight.t()
    dims = int(kind[-2])
    batched = x if x.ndim == dims + 2 else x[None]
    y = (_transposed if "Transpose" in kind else _convolution)(module, dims, batched, weight, extra)
    return y if x.ndim == dims + 2 else y[0]


def _convolution(module: Any, dims: int, x: Tensor, weight: Tensor, extra: tuple[Any, ...]) -> Tensor:
    if module.padding == "same":
        total = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        pads = [(t // 2, t - t // 2) for t in total]
    elif module.padding == "valid":
        pads = [(0, 0)] * dims
    else:
        pads = [(p, p) for p in module.padding]
    flat = [p for pair in reversed(pads) for p in pair]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = F.pad(x.double(), flat, mode=mode).long()
    outputs = [
        (n - d * (k - 1) - 1) // s + 1
        for n, d, k, s in zip(x.shape[2:], module.dilation, module.kernel_size, module.stride, strict=True)
    ]
    groups, per_out, per_in = module.groups, weight.shape[0] // module.groups, weight.shape[1]
    y = torch.zeros(x.shape[0], weight.shape[0], *outputs, dtype=torch.int64)
    for tap in product(*(range(k) for k in module.kernel_size)):
        window = x
        for axis, (t, d, s, n) in enumerate(zip(tap, module.dilation, module.stride, outputs, strict=True)):
            window = window.narrow(2 + axis, t * d, (n - 1) * s + 1)
            window = window.index_select(2 + axis, torch.arange(0, (n - 1) * s + 1, s))
        for group in range(groups):
            w = weight[(slice(group * per_out, (group + 1) * per_out), slice(None), *tap)]
            part = window[:, group * per_in : (group + 1) * per_in].flatten(2)
            y[:, group * per_out : (group + 1) * per_out] += (w @ part).view(x.shape[0], per_out, *outputs)
    return y


def _transposed(module: Any, dims: int, x: Tensor, weight: Tensor, extra: tuple[Any, ...]) -> Tensor:
    geometry = list(zip(module.stride, module.padding, module.dilation, module.kernel_size, strict=True))
    base = [(n - 1) * s + d * (k - 1) + 1 - 2 * p for n, (s, p, d, k) in zip(x.shape[2:], geometry, strict=True)]
    wanted = extra[0] if extra else [n + o for n, o in zip(base, module.output_padding, strict=True)]
    room = [n + 2 * p for n, (_, p, _, _) in zip(wanted, geometry, strict=True)]
    per_in, per_out = weight.shape[0] // module.groups, weight.shape[1]
    y = torch.zeros(x.shape[0], per_out * module.groups, *room, dtype=torch.int64)
    for tap in product(*(range(k) for k in module.kernel_size)):
        where = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, n, (s, _, d, _) in zip(tap, x.shape[2:], geometry, strict=True)
        )
        for group in range(module.groups):
            part = slice(group * per_in, (group + 1) * per_in)
            w = weight[(part, slice(None), *tap)].t()
            term = (w @ x[:, part].flatten(2)).view(x.shape[0], per_out, *x.shape[2:])
            y[(slice(None), slice(group * per_out, (group + 1) * per_out), *where)] += term
    crop = tuple(slice(p, p + n) for n, (_, p, _, _) in zip(wanted, geometry, strict=True))
    return y[(slice(None), slice(None), *crop)]


def weight_grid(tensor: Any) -> Tensor:
    """(qw - zw) as int64, or the whole numbers of a table."""
    if tensor.spec.dtype.values is not None:
        return torch.tensor(tensor.spec.dtype.values)[tensor.codes.long()].long()
    zero = tensor.zero_point.long()
    axis = tensor.spec.axis
    if tensor.spec.granularity.kind == "per_group" and zero.ndim:
        size = tensor.spec.granularity.group_size
        zero = zero.repeat_interleave(size, axis).narrow(axis, 0, tensor.shape[axis])
    return tensor.codes.long() - zero


def norm_of(float_model: nn.Module, name: str) -> Any:
    """The BatchNorm that these tests' networks put behind a convolution or linear op."""
    if not name:
        return None
    return dict(float_model.named_modules())[name]


def expected(
    float_module: Any, norm: Any, kind: str, x: Tensor, quantizer: Any, tensor: Any, extra: tuple[Any, ...] = ()
) -> Tensor:
    """What a weighted op must give, computed with int64."""
    grid, scale = codes_and_params(x, quantizer)
    weight = weight_grid(tensor)
    channels = getattr(float_module, "out_channels", weight.shape[0])
    factor, bias = _norm_terms(norm, float_module.bias)
    folds_first = tensor.spec.granularity.kind == "per_tensor"

    def over(vector: Tensor) -> Tensor:
        dims = 0 if kind == "Linear" else int(kind[-2])
        return vector.reshape(-1, *[1] * dims)

    def times(scales: Tensor) -> Tensor:
        return scales if factor is None or folds_first else scales * factor

    if tensor.spec.granularity.kind != "per_group":
        scales = tensor.scale.reshape(-1).float()
        if "Transpose" in kind and len(scales) > 1:
            scales = scales.repeat(float_module.groups)
        total = linear_map(float_module, kind, grid, weight, extra).float()
        y = total * (scale * over(times(scales.expand(channels))))
    else:
        y = _sum_of_groups(float_module, kind, grid, scale, weight, tensor, times, over, extra)
    return y if bias is None else y + over(bias)


def _sum_of_groups(module: Any, kind: str, grid: Tensor, scale: Tensor, weight: Tensor, tensor: Any, times: Any,
                   over: Any, extra: tuple[Any, ...]) -> Tensor:  # fmt: skip
    axis, size = tensor.spec.axis, tensor.spec.granularity.group_size
    taps = list(product(*(range(k) for k in weight.shape[2:])))
    y = None
    for group in range(tensor.scale.shape[axis]):
        for tap in taps:
            kept = torch.zeros_like(weight)
            where: list[Any] = [slice(None), slice(None), *tap]
            where[axis] = slice(group * size, (group + 1) * size)
            kept[tuple(where)] = weight[tuple(where)]
            at: list[Any] = [slice(None), slice(None), *tap]
            at[axis] = group
            total = linear_map(module, kind, grid, kept, extra).float()
            term = total * (scale * over(times(tensor.scale[tuple(at)].float())))
            y = term if y is None else y + term
    assert y is not None
    return y


def _norm_terms(norm: Any, bias: Any) -> tuple[Tensor | None, Tensor | None]:
    if norm is None:
        return None, None if bias is None else bias.detach().float()
    factor = norm.weight.detach().double() * torch.rsqrt(norm.running_var.double() + norm.eps)
    shift = ((0.0 if bias is None else bias.detach().double()) - norm.running_mean.double()) * factor
    return factor.float(), (shift + norm.bias.detach().double()).float()


@contextmanager
def recorded(model: nn.Module) -> Any:
    """Collects (name, type, module, inputs, output) of every weighted op that runs."""
    calls: list[tuple[str, str, Any, tuple[Any, ...], Tensor]] = []
    hooks = []
    for name, module in model.named_modules():
        if type(module).__name__ in TYPES:

            def hook(module: Any, args: Any, output: Tensor, name: str = name) -> None:
                calls.append((name, type(module).__name__, module, args, output.clone()))

            hooks.append(module.register_forward_hook(hook))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def check_model(float_model: nn.Module, prepared: nn.Module, *inputs: Any, ops: int) -> None:
    """Prepared equals converted, and every weighted op equals its recomputation, bit for bit.

    Args:
        ops: how many weighted ops must have been checked.
    """
    prepared.eval()
    converted = subbyte.convert(prepared)
    ready = {name: module for name, module in prepared.named_modules() if getattr(module, "norm", ())}
    norms = {name: op.norm for name, op in prepared.subbyte_state.graph.ops.items() if name in ready}
    outputs = []
    for model in (prepared, converted):
        tensors = subbyte.weights(model)
        with torch.no_grad():
            model(*inputs)  # a model quantized without data looks for its ops first
        with torch.no_grad(), recorded(model) as calls:
            outputs.append(model(*inputs))
        assert len(calls) == ops
        for name, kind, module, args, output in calls:
            float_module = float_model.get_submodule(name)
            (quantizer,) = set(module.input_quantizers)
            x, *extra = args
            want = expected(
                float_module, norm_of(float_model, norms.get(name, "")), kind, x, quantizer, tensors[name], tuple(extra)
            )
            assert torch.equal(output, want), f"{name}: {(output - want).abs().max()}"
            check_codes(float_module, norm_of(float_model, norms.get(name, "")), tensors[name])
    assert torch.equal(*outputs)
    assert outputs[0].numel() == 0 or torch.isfinite(outputs[0]).all()


def check_codes(float_module: Any, norm: Any, tensor: Any) -> None:
    """The codes are those of the float weight (with BatchNorm in it where one scale holds for all)."""
    spec, codes = tensor.spec, tensor.codes.long()
    assert codes.numel() == 0 or (0 if spec.dtype.values else spec.qmin) <= codes.min()
    assert codes.numel() == 0 or codes.max() <= (len(spec.dtype.values) - 1 if spec.dtype.values else spec.qmax)
    if spec.dtype.values:
        return
    weight, scale, zero = float_module.weight.detach().float(), tensor.scale.float(), tensor.zero_point
    if spec.granularity.kind == "per_tensor" and norm is not None:
        factor, _ = _norm_terms(norm, None)
        weight = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    if spec.granularity.kind == "per_group":
        size, axis = spec.granularity.group_size, spec.axis
        scale = scale.repeat_interleave(size, axis).narrow(axis, 0, weight.shape[axis])
        zero = zero if not zero.ndim else zero.repeat_interleave(size, axis).narrow(axis, 0, weight.shape[axis])
    assert torch.equal(codes, torch.clamp(torch.round(weight / scale) + zero, spec.qmin, spec.qmax).long())
