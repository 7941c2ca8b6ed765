"""Networks as people have them: the trained ResNet-20 on real images, a U-Net."""

import pytest
import torch

import subbyte
from networks import ResNetCifar, UNet, cifar_images, randomized, real_resnet20, seeded


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return cifar_images(384)


def test_resnet20_in_eight_bits_agrees_with_float_on_real_images(images: torch.Tensor) -> None:
    model, x = real_resnet20(), images[128:]
    quantized = subbyte.quantize(model, "w8a8", [images[:64], images[64:128]])
    with torch.no_grad():
        agree = (quantized(x).argmax(1) == model(x).argmax(1)).float().mean()
    assert agree >= 0.97
    rows = subbyte.summary(quantized).rows
    assert all(row["realized"] == row["requested"] for row in rows)
    assert sum(row["type"] == "Conv2d" for row in rows) == 19
    assert sum(row["type"] == "add" for row in rows) == 9


def test_resnet20_in_four_bits_still_sees(images: torch.Tensor) -> None:
    model, x = real_resnet20(), images[128:]
    prepared = subbyte.prepare(model, "w4a4", images[:128], first_last="int8")
    quantized = subbyte.convert(prepared)
    with torch.no_grad():
        got = quantized(x)
        assert torch.equal(got, prepared(x))
        assert (got.argmax(1) == model(x).argmax(1)).float().mean() >= 0.75
    rows = {row["name"]: row for row in subbyte.summary(quantized).rows}
    assert [rows[name]["weight_dtype"] for name in ("conv1", "layer1.0.conv1", "linear")] == ["int8", "int4", "int8"]


def test_unet_concatenates_quantized_values() -> None:
    model, x = randomized(UNet(8)), seeded((2, 3, 16, 16))
    prepared = subbyte.prepare(model, "w8a8", x)
    with torch.no_grad():
        want = model(x)
        assert (prepared(x) - want).abs().max() < 0.1 * want.abs().max()
        assert torch.equal(subbyte.convert(prepared)(x), prepared(x))
        # a size that the calibration did not have
        assert prepared(seeded((1, 3, 24, 20))).shape == (1, 2, 24, 20)
    rows = {row["name"]: row for row in subbyte.summary(prepared).rows}
    assert rows["cat"]["activation_dtype"] == rows["cat_1"]["activation_dtype"] == "uint8"
    assert rows["up1"]["type"] == "ConvTranspose2d"


def test_the_residual_add_quantizes_each_of_its_inputs() -> None:
    prepared = subbyte.prepare(randomized(ResNetCifar(8, 4)), "w4a4", seeded((2, 3, 16, 16)))
    keys = prepared.subbyte_state.input_keys["layer2.0.add"]
    assert len(keys) == 2
    scales = {float(prepared.subbyte_state.quantizers[key].scale) for key in keys}
    assert len(scales) == 2
