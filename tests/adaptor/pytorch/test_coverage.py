"""A chip described by a file of its own: what the model contains, what the file lists, and what is implemented."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import cifar_images, randomized, real_resnet20, seeded, tiny_transformer
from subbyte import CapabilityError, ConfigError, UnimplementedOpWarning, UnsupportedOpWarning

WEIGHT = "weight: {dtype: [int4], scheme: [sym], granularity: [per_channel], algorithm: [minmax]}"
INPUT = "activation: {dtype: [uint4], scheme: [asym], granularity: [per_tensor], algorithm: [minmax]}"
NPU = f"""\
version: {{name: npu}}
capabilities:
  int4:
    static:
      Conv2d: {{{WEIGHT}, {INPUT}}}
      Linear: {{{WEIGHT}, {INPUT}}}
"""
ADD = f"      add: {{{INPUT}}}\n"
IMAGES = seeded((4, 3, 8, 8))


def chip(folder: Path, text: str) -> Path:
    path = folder / "npu.yaml"
    path.write_text(text)
    return path


class Net(nn.Module):
    """A stem, a layer or a function under test, a head."""

    def __init__(self, stem: nn.Module, middle: Any = nn.Identity()) -> None:  # noqa: B008 (holds no state)
        super().__init__()
        self.stem, self.middle, self.head = stem, middle, nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.stem(x)).mean((2, 3)))


class Called(nn.Module):
    """A function as a module of no type that PyTorch has."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class OwnPReLU(nn.PReLU):
    """A subclass is one of its base."""


UNIMPLEMENTED = {
    "GroupNorm": nn.GroupNorm(4, 16),
    "PReLU": OwnPReLU(),
    "MaxPool2d": nn.MaxPool2d(2),
    "max_pool2d": Called(lambda x: F.max_pool2d(x, 2)),
    "group_norm": Called(lambda x: F.group_norm(x, 4)),
}


@pytest.mark.parametrize("config", ["default", "w4a4", {}, "type"])
@pytest.mark.parametrize("op_type", UNIMPLEMENTED)
def test_an_op_of_the_model_that_nothing_implements_is_refused(tmp_path: Path, op_type: str, config: Any) -> None:
    path = chip(tmp_path, NPU + f"      {op_type}: {{{INPUT}}}\n  fp32: ['*']\n")
    asked = {"op_type_dict": {op_type: {"activation": {"dtype": "uint4"}}}} if config == "type" else config
    model = Net(nn.Conv2d(3, 16, 3), UNIMPLEMENTED[op_type]).eval()
    with pytest.warns(UnimplementedOpWarning, match=op_type):
        capability = subbyte.load_capability(path)
    with pytest.raises(CapabilityError, match=rf"npu\.yaml:7: int4, static, {op_type}: .*'middle"):
        subbyte.quantize(model, asked, IMAGES, capability=capability)
    with pytest.raises(CapabilityError, match=op_type):
        subbyte.tune(model, IMAGES, lambda m: 1.0, capability=capability, storage=tmp_path / "study.db")
    subbyte.quantize(Net(nn.Conv2d(3, 16, 3)).eval(), "w4a4", IMAGES, capability=capability)  # contains none


@pytest.mark.parametrize(
    ("op_type", "request_"),
    [
        ("GroupNorm", {"op_type_dict": {"GroupNorm": "bf16"}}),
        ("GroupNorm", {"op_type_dict": {"GroupNorm": "w8a8"}}),
        ("MaxPool2d", {"op_type_dict": {"MaxPool2d": "bf16"}}),
        ("GroupNorm", "bf16"),
    ],
)
def test_op_listed_in_bf16_is_refused_when_nothing_implements_it(tmp_path: Path, op_type: str, request_: Any) -> None:
    path = chip(tmp_path, f"extends: pytorch_cpu\ncapabilities:\n  bf16: [Conv2d, Linear, {op_type}]\n")
    model = Net(nn.Conv2d(3, 16, 3), UNIMPLEMENTED[op_type]).eval()
    with pytest.warns(UnimplementedOpWarning, match=rf"npu\.yaml:3: bf16, {op_type}"):
        capability = subbyte.load_capability(path)
    with pytest.raises(ConfigError, match=rf"{op_type}.*npu\.yaml:3"):
        subbyte.quantize(model, request_, IMAGES, capability=capability)
    for accepted in ("w4a8", {"precision": "bf16", "op_type_dict": {op_type: "fp32"}}):
        subbyte.quantize(model, accepted, IMAGES, capability=capability)


def test_request_for_an_unimplemented_type_is_refused_without_such_an_op(tmp_path: Path) -> None:
    path = chip(tmp_path, NPU + f"      logsigmoid: {{{INPUT}}}\n  fp32: ['*']\n")
    model = Net(nn.Conv2d(3, 16, 3), Called(F.logsigmoid)).eval()  # recorded under no name
    with (
        pytest.warns(UnimplementedOpWarning, match="logsigmoid"),
        pytest.raises(ConfigError, match=r"op_type_dict\['logsigmoid'\].*npu\.yaml:7"),
    ):
        subbyte.quantize(model, {"op_type_dict": {"logsigmoid": "int4"}}, IMAGES, capability=path)


def test_an_op_that_only_a_later_batch_reaches_is_refused(tmp_path: Path) -> None:
    class Late(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = self.stem(x)
            return self.head((F.softplus(self.middle(y)) if x.mean() > 0 else y).mean((2, 3)))

    path = chip(tmp_path, NPU + f"      softplus: {{{INPUT}}}\n  fp32: ['*']\n")
    model = Late(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1)).eval()
    high, low = torch.ones(1, 3, 8, 8), -torch.ones(1, 3, 8, 8)
    with pytest.warns(UnimplementedOpWarning):
        capability = subbyte.load_capability(path)
    subbyte.quantize(model, "w4a4", [low], capability=capability)
    with pytest.raises(CapabilityError, match="softplus"):
        subbyte.quantize(model, "w4a4", [low, high], capability=capability)


def test_batch_norm_is_folded_by_default(tmp_path: Path) -> None:
    model = randomized(Net(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16))))
    without = subbyte.prepare(model, "w4a4", IMAGES, capability=chip(tmp_path, NPU))
    assert type(without.stem[1]) is not nn.BatchNorm2d
    listed = NPU + "fusions: [[Conv2d, BatchNorm2d]]\n"
    assert torch.equal(
        without(IMAGES), subbyte.prepare(model, "w4a4", IMAGES, capability=chip(tmp_path, listed))(IMAGES)
    )
    with pytest.raises(ConfigError, match=r"BatchNorm2d \('stem\.1': not folded"):
        subbyte.prepare(model, "w4a4", IMAGES, capability=chip(tmp_path, NPU + "fusions: []\n"))


def test_unsupported_float_has_a_warning_and_a_row(tmp_path: Path) -> None:
    class Residual(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = self.stem(x)
            return self.head((y + self.middle(y)).mean((2, 3)))

    model = Residual(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 1)).eval()
    with pytest.raises(ConfigError, match=r"add \('add'\)"):
        subbyte.quantize(model, "default", IMAGES, capability=chip(tmp_path, NPU))
    with pytest.warns(UnsupportedOpWarning, match=r"add \('add'\)"):
        quantized = subbyte.quantize(model, "default", IMAGES, capability=chip(tmp_path, NPU + "unsupported: float\n"))
    rows = {row["name"]: row for row in subbyte.summary(quantized).rows}
    assert "unsupported: float" in rows["add"]["float_because"]
    assert {rows[name]["activation_dtype"] for name in ("stem", "middle", "head")} == {"uint4"}


class Scaled(Net):
    """Multiplies by a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 16, 3))
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.w


def test_parameter_that_code_reads_is_refused_without_fp32(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Parameter \('w'\)"):
        subbyte.quantize(Scaled().eval(), "default", IMAGES, capability=chip(tmp_path, NPU))
    subbyte.quantize(Scaled().eval(), "default", IMAGES, capability=chip(tmp_path, NPU + "  fp32: [Parameter]\n"))


class ForwardKept(nn.Conv2d):
    """Computes as its base."""


class OwnForward(nn.Conv2d):
    """Subtracts the mean of each filter."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


class OwnLstm(nn.LSTM):
    """By code of its own, which is that of its base."""

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return super().forward(x)


class Sequence(nn.Module):
    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.head = first, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.head(y[0] if isinstance(y, tuple) else y)


class TestFirstLast:
    def test_a_subclass_that_keeps_its_forward_is_quantized(self) -> None:
        quantized = subbyte.quantize(Net(ForwardKept(3, 16, 3)).eval(), "w4a4", IMAGES, first_last="int8")
        rows = {row["name"]: row for row in subbyte.summary(quantized).rows}
        assert (rows["stem"]["type"], rows["stem"]["weight_dtype"]) == ("Conv2d", "int8")

    def test_a_subclass_with_its_own_forward_is_named(self) -> None:
        model = Net(OwnForward(3, 16, 3)).eval()
        with pytest.raises(ConfigError, match=r"'stem\.conv2d' \(conv2d\).*first_last='int8'"):
            subbyte.quantize(model, "w4a4", IMAGES, first_last="int8")
        config = {"precision": "w4a4", "op_name_dict": {"stem.conv2d": "fp32"}}
        rows = subbyte.summary(subbyte.quantize(model, config, IMAGES, first_last="int8")).rows
        assert {row["name"]: (row["weight_dtype"], row["positions"]) for row in rows} == {
            "stem.conv2d": ("fp32", ["first"]),
            "stem": ("fp32", []),  # its weight, which the function reads only after a change
            "head": ("int8", ["last"]),
        }

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    def test_a_recurrent_layer_takes_the_mode_that_it_has(self, kind: type[nn.Module]) -> None:
        x = seeded((5, 3, 8))
        model = Sequence(kind(8, 8)).eval()
        quantized = subbyte.quantize(model, "w4a4", x, first_last="int8")
        rows = {row["name"]: row for row in subbyte.summary(quantized).rows}
        assert (rows["first"]["weight_dtype"], rows["first"]["activation_dtype"]) == ("int8", "uint8")
        assert "dynamic" in rows["first"]["realized"]
        assert f"{kind.__name__} in dynamic mode" in str(subbyte.explain(quantized, "first"))
        assert torch.allclose(quantized(x), model(x), atol=0.05)

    @pytest.mark.parametrize(
        ("first", "x", "name"),
        [
            (nn.EmbeddingBag(16, 8), torch.arange(8).reshape(2, 4), r"'first' \(EmbeddingBag\)"),
            (OwnLstm(8, 8), seeded((5, 3, 8)), r"'first\.lstm' \(lstm\)"),
        ],
    )
    def test_a_layer_without_quantized_form_is_named(self, first: nn.Module, x: Tensor, name: str) -> None:
        with pytest.raises(ConfigError, match=f"{name}.*first_last='int8'"):
            subbyte.quantize(Sequence(first).eval(), "w4a4", x, first_last="int8")

    def test_a_subclass_of_an_lstm_with_its_own_forward_has_a_row(self) -> None:
        rows = subbyte.summary(subbyte.quantize(Sequence(OwnLstm(8, 8)).eval(), "w4a4", seeded((5, 3, 8)))).rows
        own = next(row for row in rows if row["type"] == "lstm")
        assert own["params"] == 2 * 4 * 8 * 8 + 2 * 4 * 8
        assert own["macs"] == 3 * 2 * 4 * 8 * 8

    @pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
    def test_the_ends_of_transformers_are_quantized(self, name: str) -> None:
        ids = torch.arange(16).reshape(2, 8)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            quantized = subbyte.quantize(tiny_transformer(name), "w4a8", ids, first_last="int8")
        ends = [row for row in subbyte.summary(quantized).rows if row["positions"]]
        assert {row["weight_dtype"] for row in ends} == {"int8"}
        assert {tuple(row["positions"]) for row in ends} == {("first",), ("last",)}


@pytest.mark.parametrize("config", ["w4a4", "default", {}])
def test_resnet20_on_a_chip_of_its_own(tmp_path: Path, config: Any) -> None:
    images = cifar_images(64)
    model = real_resnet20()
    with pytest.raises(ConfigError, match=r"add \('layer1\.0\.add'"):
        subbyte.quantize(model, config, images, capability=chip(tmp_path, NPU))
    quantized = subbyte.quantize(model, config, images, capability=chip(tmp_path, NPU + ADD))
    rows = subbyte.summary(quantized).rows
    assert {row["weight_dtype"] for row in rows} == {"int4", None}
    assert {row["activation_dtype"] for row in rows} == {"uint4"}
    assert all(" asym " in row["realized"] for row in rows)
    agreement = (quantized(images).argmax(1) == model(images).argmax(1)).float().mean()
    assert agreement > 0.55
