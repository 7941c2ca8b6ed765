"""binary_conv2d: every instruction set against whole numbers, and what it refuses."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels import binary_conv2d as in_torch
from subbyte.kernels.binary_conv2d import binary_conv2d, binary_conv2d_packed
from subbyte.kernels.binary_weight import BinaryWeight, Levels
from subbyte.kernels.convolution import Window
from subbyte.kernels.epilogue import Epilogue, Signs, _followed

IN_TORCH = {
    "binary_conv2d": in_torch._binary_conv2d,
    "binary_conv2d_packed": in_torch._binary_conv2d_packed,
    "binary_conv2d_packed_fused": _followed(in_torch._binary_conv2d_packed),
}
SIGNS = Levels(-1, 1, 2, False)
EVERY_KIND = [SIGNS, Levels(-1, 1, 3, False), Levels(0, 1, 2, True), Levels(-1, 0, 2, True)]
CHANNELS = [1, 3, 12, 16, 21, 22, 32, 40, 64, 65, 130]


def layer(
    size: tuple[int, int, int, int],
    outputs: int,
    window: Window,
    levels: Levels = SIGNS,
    *,
    groups: int = 1,
    zeros: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of one call, drawn at random; `zeros`: whether weights may be 0."""
    random = torch.Generator().manual_seed(seed)
    shape = (outputs, size[1] // groups, *window.kernel)
    values = torch.randint(-1, 2, shape, generator=random, dtype=torch.int8)
    zero_point = torch.randint(levels.low, levels.high + 1, (1,), generator=random, dtype=torch.int32)
    return {
        "x": torch.randn(size, generator=random),
        "values": values if zeros else torch.where(values == 0, 1, values),
        "scale": torch.rand(outputs, generator=random) + 0.1,
        "groups": groups,
        "bias": torch.randn(outputs, generator=random),
        "levels": levels,
        "x_scale": torch.rand(1, generator=random) + 0.1,
        "x_zero_point": zero_point if levels.rounds else torch.zeros(1, dtype=torch.int32),
        "window": window,
    }


def run(case: dict[str, Any]) -> Tensor:
    weight = BinaryWeight.of(case["values"], case["scale"], case["groups"])
    how = (case["levels"], case["x_scale"], case["x_zero_point"], case["window"])
    return binary_conv2d(case["x"], weight, weight.in_panels(case["bias"]), *how)


def expected(case: dict[str, Any]) -> Tensor:
    """Tap by tap in int64, on an image padded with 0."""
    levels, window, groups = case["levels"], case["window"], case["groups"]
    quotient = case["x"].numpy() / case["x_scale"].numpy()
    if levels.rounds:
        zero = case["x_zero_point"].numpy()
        grid = np.clip(np.rint(quotient) + zero, levels.low, levels.high) - zero
    else:
        table = np.linspace(levels.low, levels.high, levels.count)
        grid = table[np.searchsorted((table[1:] + table[:-1]) / 2, quotient, "right")]
    (top, left), (down, right), (below, beside) = window.padding, window.stride, window.dilation
    image = np.pad(grid.astype(np.int64), ((0, 0), (0, 0), (top, top), (left, left)))
    image = image.reshape(len(image), groups, case["values"].shape[1], *image.shape[2:])
    values = case["values"].numpy().astype(np.int64)
    values = values.reshape(groups, -1, *values.shape[1:])
    rows, columns = window.output(case["x"].shape[2:])
    total: Any = 0
    for i in range(window.kernel[0]):
        for j in range(window.kernel[1]):
            part = image[..., i * below :, j * beside :][
                ..., : (rows - 1) * down + 1 : down, : (columns - 1) * right + 1 : right
            ]
            total = total + np.einsum("ngchw,goc->ngohw", part, values[..., i, j])
    total = total.reshape(len(image), len(case["values"]), rows, columns)
    by_output = (case["x_scale"] * case["scale"])[:, None, None]
    return torch.from_numpy(total.astype(np.float32)) * by_output + case["bias"][:, None, None]


two = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    images=st.integers(0, 2),
    channels=st.sampled_from(CHANNELS),
    spatial=st.tuples(st.integers(1, 12), st.integers(1, 20)),
    outputs=st.integers(1, 40),
    groups=st.integers(1, 3),
    window=st.builds(
        Window,
        st.tuples(st.integers(1, 4), st.integers(1, 5)),
        two,
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
        two,
    ),
    levels=st.sampled_from(EVERY_KIND),
    zeros=st.booleans(),
    last=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_the_formula_bit_for_bit(
    kernels: str,
    images: int,
    channels: int,
    spatial: tuple[int, int],
    outputs: int,
    groups: int,
    window: Window,
    levels: Levels,
    zeros: bool,
    last: bool,
    seed: int,
) -> None:
    assume(min(window.output(spatial)) > 0)
    size = (images, channels * groups, *spatial)
    case = layer(size, outputs * groups, window, levels, groups=groups, zeros=zeros, seed=seed)
    if last:
        case["x"] = case["x"].contiguous(memory_format=torch.channels_last)
    y = run(case)
    assert torch.equal(y, expected(case))
    is_last = not case["x"].is_contiguous() and last
    assert y.is_contiguous(memory_format=torch.channels_last if is_last else torch.contiguous_format)


def packed(x: Tensor) -> Tensor:
    """The signs of images as bits, channels innermost; what fills the last byte is ones."""
    bits = (x >= 0).permute(0, 2, 3, 1).numpy()
    filled = np.pad(bits, ((0, 0), (0, 0), (0, 0), (0, -bits.shape[3] % 8)), constant_values=True)
    return torch.from_numpy(np.packbits(filled, axis=3, bitorder="little"))


def run_packed(case: dict[str, Any]) -> Tensor:
    weight = BinaryWeight.of(case["values"], case["scale"], case["groups"])
    how = (case["levels"], case["x_scale"], case["x_zero_point"], case["window"])
    return binary_conv2d_packed(packed(case["x"]), weight, weight.in_panels(case["bias"]), *how)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("zeros", [False, True])
def test_packed_bits_give_what_their_floats_give(kernels: str, channels: int, groups: int, zeros: bool) -> None:
    size, window = (2, channels * groups, 9, 13), Window((3, 2), (1, 2), (1, 1), (2, 1))
    case = layer(size, 11 * groups, window, groups=groups, zeros=zeros)
    y = run_packed(case)
    assert torch.equal(y, expected(case))
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_packed_bits_are_levels_of_any_kind(kernels: str) -> None:
    case = layer((1, 24, 6, 7), 9, Window((3, 3), padding=(1, 1)), Levels(-3, 5, 2, False))
    case["x_scale"] = torch.ones(1)
    case["x"] = torch.where(case["x"] >= 0, 5.0, -3.0)
    assert torch.equal(run_packed(case), expected(case))
    for zero in (0, 1):
        case |= {"levels": Levels(0, 1, 2, True), "x_zero_point": torch.tensor([zero], dtype=torch.int32)}
        case["x"] = torch.where(torch.randn(case["x"].shape) >= 0, 1.0, 0.0) - zero
        bits = case | {"x": case["x"] + zero - 0.5}
        assert torch.equal(run_packed(bits), expected(case))


def test_layer_after_layer_runs_on_bits(kernels: str) -> None:
    first = layer((2, 24, 8, 9), 18, Window((3, 3), padding=(1, 1)))
    second = layer((2, 18, 8, 9), 11, Window((3, 2), padding=(1, 1)), seed=1)
    second |= {"x": expected(first), "x_scale": torch.ones(1)}
    weight = BinaryWeight.of(first["values"], first["scale"])
    how = (first["levels"], first["x_scale"], first["x_zero_point"], first["window"])
    signs = binary_conv2d_packed(
        packed(first["x"]), weight, weight.in_panels(first["bias"]), *how, Epilogue(output=Signs())
    )
    weight = BinaryWeight.of(second["values"], second["scale"])
    how = (second["levels"], second["x_scale"], second["x_zero_point"], second["window"])
    y = binary_conv2d_packed(signs, weight, weight.in_panels(second["bias"]), *how)
    assert torch.equal(y, expected(second))


def test_no_packed_images_give_none(kernels: str) -> None:
    case = layer((0, 24, 6, 7), 9, Window((3, 3)))
    assert run_packed(case).shape == (0, 9, 4, 5)


def test_packed_bits_that_do_not_fit_are_refused(kernels: str) -> None:
    case = layer((1, 24, 8, 9), 18, Window((3, 3)), groups=2)
    weight = BinaryWeight.of(case["values"], case["scale"], 2)
    x, bias = packed(case["x"]), weight.in_panels(case["bias"])
    rest = (case["x_scale"], case["x_zero_point"], case["window"])
    assert binary_conv2d_packed(x, weight, bias, SIGNS, *rest).shape == (1, 18, 6, 7)
    for bad in (x.int(), x[0], x[..., :2], torch.zeros(1, 8, 9, 4, dtype=torch.uint8), x[:, :2], x[:, :0]):
        with pytest.raises((RuntimeError, KernelError)):
            binary_conv2d_packed(bad, weight, bias, SIGNS, *rest)
    for channels in (0, -1, 200):
        with pytest.raises((RuntimeError, KernelError)):
            binary_conv2d_packed(x, replace(weight, channels=channels), bias, SIGNS, *rest)
    with pytest.raises((RuntimeError, KernelError)):
        binary_conv2d_packed(x, weight, bias, Levels(-1, 1, 3, False), *rest)


@pytest.mark.parametrize("levels", EVERY_KIND)
def test_padding_is_exactly_zero(kernels: str, levels: Levels) -> None:
    case = layer((1, 64, 3, 3), 5, Window((3, 3), padding=(2, 2)), levels)
    case["values"].fill_(1)
    assert torch.equal(run(case), expected(case))


def test_depthwise(kernels: str) -> None:
    case = layer((2, 20, 9, 8), 20, Window((3, 3), padding=(1, 1)), groups=20, zeros=True)
    assert torch.equal(run(case), expected(case))


def test_a_padding_wider_than_the_image(kernels: str) -> None:
    case = layer((1, 16, 2, 2), 9, Window((3, 2), (2, 1), (6, 7), (2, 3)))
    assert torch.equal(run(case), expected(case))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_nan_makes_nan_what_reads_it(kernels: str, memory_format: torch.memory_format) -> None:
    window = Window((3, 3), (2, 1), (1, 1), (1, 2))
    case = layer((2, 24, 9, 10), 18, window, Levels(0, 1, 2, True), groups=2)
    case["x"] = case["x"].contiguous(memory_format=memory_format)
    clean = run(case)
    case["x"][1, 3, 4, 5] = torch.nan
    y = run(case)
    reads = torch.nn.functional.conv2d(
        case["x"].isnan().float(), torch.ones(18, 12, 3, 3), None, *(window.stride, window.padding, window.dilation), 2
    )
    assert torch.equal(y.isnan(), reads > 0)
    assert torch.equal(y[~y.isnan()], clean[~y.isnan()])


def test_threads_and_layouts_leave_no_trace(kernels: str) -> None:
    case = layer((3, 48, 20, 17), 40, Window((3, 3), padding=(1, 1)))
    want = expected(case)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(run(case), want)
    finally:
        torch.set_num_threads(threads)
    case["x"] = case["x"].transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(run(case), want)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("zeros", [False, True])
def test_the_weights_come_back(channels: int, zeros: bool) -> None:
    case = layer((1, 2 * channels, 9, 9), 22, Window((2, 5)), groups=2, zeros=zeros)
    weight = BinaryWeight.of(case["values"], case["scale"], 2)
    assert torch.equal(weight.values(), case["values"])
    assert torch.equal(weight.out_of_panels(weight.scale), case["scale"])


def test_few_channels_share_words() -> None:
    case = layer((1, 16, 9, 9), 8, Window((3, 3)))
    weight = BinaryWeight.of(case["values"], case["scale"])
    assert weight.packed.numel() == 8 * 3  # a word for each row of the kernel
    assert not weight.has_masks


def test_a_padded_image_beyond_memory_is_refused(kernels: str) -> None:
    far = ((1 << 20) - 1,) * 2
    case = layer((1 << 10, 3, 2, 2), 18, Window((3, 3), stride=far, padding=far), SIGNS)
    # PyTorch makes no padded copy.
    refused = nullcontext() if kernels == "torch" else pytest.raises(RuntimeError, match="too large")
    with refused:
        run(case)


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    case = layer((1, 24, 8, 9), 18, Window((3, 3)), Levels(0, 1, 2, True), groups=2)
    weight = BinaryWeight.of(case["values"], case["scale"], 2)
    good: dict[str, Any] = {
        "x": case["x"],
        "weight": weight,
        "bias": weight.in_panels(case["bias"]),
        "levels": case["levels"],
        "x_scale": case["x_scale"],
        "x_zero_point": case["x_zero_point"],
        "window": case["window"],
    }
    x = case["x"]
    bad: list[dict[str, Any]] = [
        *(
            {"x": bad_x}
            for bad_x in (x.double(), x[0], x[:, :0], x[:, :23], x[..., :0], x[..., :2], torch.randn(1, 66, 8, 9))
        ),
        *({"weight": replace(weight, groups=groups)} for groups in (0, -1, 5)),
        *({"weight": replace(weight, outputs=outputs)} for outputs in (0, 17, 40)),
        {"weight": replace(weight, packed=weight.packed[:-1])},
        {"weight": replace(weight, sums=weight.sums[:-1])},
        {"weight": replace(weight, ones=weight.ones.long())},
        {"weight": replace(weight, has_masks=not weight.has_masks)},
        {"weight": replace(weight, kernel=(2, 3)), "window": Window((2, 3))},
        {"weight": replace(weight, kernel=(0, 3)), "window": Window((0, 3))},
        {"window": Window((2, 3))},
        *({"window": Window((3, 3), stride=stride)} for stride in ((0, 1), (1, -1), (1 << 40, 1))),
        *({"window": Window((3, 3), padding=padding)} for padding in ((-1, 0), (0, 1 << 40))),
        *({"window": Window((3, 3), dilation=dilation)} for dilation in ((0, 1), (1, 5), (1 << 40, 1))),
        {"bias": case["bias"]},
        {"levels": Levels(0, 1, 4, True)},
        {"x_scale": torch.tensor([torch.nan])},
        {"x_scale": torch.ones(24), "x_zero_point": torch.zeros(24, dtype=torch.int32)},
        {"x_zero_point": torch.tensor([2], dtype=torch.int32)},
    ]
    assert binary_conv2d(**good).shape == (1, 18, 6, 7)
    for changes in bad:
        with pytest.raises((RuntimeError, KernelError)):
            binary_conv2d(**{**good, **changes})


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_it_is_a_well_behaved_operator(memory_format: torch.memory_format) -> None:
    case = layer((2, 24, 8, 9), 18, Window((3, 3), (2, 1), (1, 0)), groups=2)
    weight = BinaryWeight.of(case["values"], case["scale"], 2)
    parts = (weight.packed, weight.scale, weight.sums, weight.ones, weight.in_panels(case["bias"]))
    rest = (case["x_scale"], case["x_zero_point"], -1, 1, 2, False, 18, weight.has_masks, *case["window"].numbers(), 2)
    x = case["x"].contiguous(memory_format=memory_format)
    torch.library.opcheck(torch.ops.subbyte.binary_conv2d.default, (x, *parts, *rest))
    torch.library.opcheck(torch.ops.subbyte.binary_conv2d_packed.default, (packed(x), *parts, *rest, 24))
