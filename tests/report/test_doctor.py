"""compare: what it says of healthy and of sabotaged models, and how it is written."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, cifar_images, combining, randomized, real_resnet20, seeded, tiny_transformer
from pages import Page
from subbyte import Comparison, ConfigError, ModelError


@pytest.fixture(scope="module")
def data() -> Tensor:
    return seeded((4, 3, 8, 8))


@pytest.fixture(scope="module")
def compared(data: Tensor) -> Comparison:
    model = randomized(ResidualNet(6))
    return subbyte.compare(model, subbyte.quantize(model, "w2a8", data), data)


def test_errors_are_relative_and_add_up(compared: Comparison) -> None:
    op = compared["conv2"]
    assert op.own_error == op.weight_error + op.input_error
    assert op.weight_error > 0.02 > op.input_error > 0
    assert compared["add"].weight_error is None
    assert [each.where for each in op.quantizers] == ["weight", "input"]
    assert [each.where for each in compared["add"].quantizers] == ["input 0", "input 1"]
    assert op.precision == "int2 / uint8"
    assert compared["add"].precision == "- / uint8"


def test_worst_are_those_that_add_most(compared: Comparison) -> None:
    worst = compared.worst(2)
    assert len(worst) == 2
    assert worst[0].own_error == max(op.own_error for op in compared.ops)
    assert worst[0].own_error >= worst[1].own_error
    assert compared.worst(99)[-1].name == "add"


def test_an_op_that_is_not_there_is_told(compared: Comparison) -> None:
    with pytest.raises(ConfigError, match="no op 'conv3'; did you mean 'conv2'"):
        compared["conv3"]


def test_a_healthy_model_has_no_jump(data: Tensor) -> None:
    model = randomized(ResidualNet(6))
    found = subbyte.compare(model, subbyte.quantize(model, "w8a8", data), data)
    assert found.first_jump is None
    assert not any(op.remedies for op in found.ops)
    assert found.output_sqnr > 30
    assert "no op adds much more error than the others" in str(found)


def wider_input(module: Any) -> None:
    (quantizer,) = module.input_quantizers
    quantizer.scale.mul_(4)


def narrower_input(module: Any) -> None:
    (quantizer,) = module.input_quantizers
    quantizer.scale.mul_(0.25)


def wider_weight(module: Any) -> None:
    module.weight_quantizer.scale.mul_(4)


def other_norm(module: Any) -> None:
    module.norm[0].running_var.mul_(9)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return cifar_images(32)


@pytest.mark.parametrize("config", ["w8a8", "w4a4"])
@pytest.mark.parametrize(
    ("sabotage", "remedy", "because"),
    [
        (wider_input, "calibrate again", r"the data uses [24]\d% of the range of its input"),
        (wider_weight, "calibrate again", r"the data uses 2\d% of the range of its weight"),
    ],
)
def test_a_sabotaged_layer_of_a_real_network_is_where_error_jumps(
    images: Tensor, config: str, sabotage: Any, remedy: str, because: str
) -> None:
    model = real_resnet20()
    prepared = subbyte.prepare(model, config, images, first_last="int8")
    healthy = subbyte.compare(model, prepared, images)
    sabotage(prepared.layer2[1].conv1)
    found = subbyte.compare(model, subbyte.convert(prepared), images)
    assert healthy.first_jump != "layer2.1.conv1"
    assert found.first_jump == "layer2.1.conv1"
    assert found["layer2.1.conv1"].remedies[0].methods[0] == remedy
    assert re.search(because, found["layer2.1.conv1"].remedies[0].because)


def test_a_batch_norm_that_is_not_the_float_models_is_told(images: Tensor) -> None:
    model = real_resnet20()
    prepared = subbyte.prepare(model, "w8a8", images, first_last="int8")
    other_norm(prepared.layer2[1].conv1)
    found = subbyte.compare(model, prepared, images)
    assert found.first_jump == "layer2.1.conv1"
    (remedy, *_) = found["layer2.1.conv1"].remedies
    assert remedy.methods == ("quantize again",)
    assert "its bias or BatchNorm is not the float model's" in remedy.because


def test_a_quantized_model_that_does_not_run_is_not_put_down_to_the_data(data: Tensor) -> None:
    model = randomized(ResidualNet(6))
    prepared = subbyte.prepare(model, "w8a8", data)
    prepared.linear.weight_quantizer.scale.fill_(torch.nan)
    with pytest.raises(ModelError, match=r"the scales of the weights of linear are not all positive"):
        subbyte.compare(model, prepared, data)
    prepared.linear.weight_quantizer.scale.fill_(0.1)
    prepared.linear.bias = nn.Parameter(torch.zeros(3))
    with pytest.raises(ModelError, match="the quantized model does not run on batch 0, on which the float model does"):
        subbyte.compare(model, prepared, data)


@pytest.mark.parametrize(("factor", "jump"), [(5, "1"), (3, "3")])
def test_the_first_of_the_worst_is_where_error_jumps(factor: float, jump: str) -> None:
    model, x = randomized(nn.Sequential(*(nn.Linear(16, 16) for _ in range(5)))), seeded((32, 16))
    prepared = subbyte.prepare(model, "w8a8", x)
    for name, scale in (("1", factor), ("3", 10.0)):  # errors grow with the square
        (quantizer,) = prepared.get_submodule(name).input_quantizers
        quantizer.scale.mul_(scale)
    assert subbyte.compare(model, prepared, x).first_jump == jump


def test_a_clipped_input_is_told(images: Tensor) -> None:
    model = real_resnet20()
    prepared = subbyte.prepare(model, "w8a8", images, first_last="int8")
    narrower_input(prepared.layer2[1].conv1)
    found = subbyte.compare(model, prepared, images)
    assert found.first_jump == "layer2.1.conv1"
    assert "of its input is clipped" in found["layer2.1.conv1"].remedies[0].because


def test_packed_weights_that_are_another_models_are_told(data: Tensor) -> None:
    model = randomized(ResidualNet(6))
    quantized = subbyte.quantize(model, "w8a8", data)
    quantized.conv2.weight.scale.mul_(4)
    found = subbyte.compare(model, quantized, data)
    assert found.first_jump == "conv2"
    assert found["conv2"].remedies[0].methods == ("quantize again",)


def test_weights_that_a_method_rounded_are_still_the_models(data: Tensor) -> None:
    model = randomized(ResidualNet(6))
    prepared = subbyte.prepare(model, "w3a8", data)
    with torch.no_grad():  # every value rounded the other way, as a method may; no more of the float weight is kept
        scale, weight = prepared.conv2.weight_quantizer.scale, prepared.conv2.weight
        weight.copy_((weight / scale).floor() * scale)
    found = subbyte.compare(model, subbyte.convert(prepared), data)
    assert all(remedy.methods != ("quantize again",) for op in found.ops for remedy in op.remedies)


def test_where_scales_were_moved_single_ops_are_not_judged(tmp_path: Path) -> None:
    model = randomized(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    with torch.no_grad():
        model[0].weight[0] *= 50
    x = seeded((32, 8))
    quantized = subbyte.quantize(model, "w4a8", x, recover=["equalize"])
    subbyte.save(quantized, tmp_path / "model.safetensors")
    for each in (quantized, subbyte.load(tmp_path / "model.safetensors", model)):
        found = subbyte.compare(model, each, x)
        assert found["0"].own_error > 0.5  # channel 0 is another size now
        assert found.output_sqnr > 15
        assert found.first_jump is None
        assert not any(op.remedies for op in found.ops)
        assert found.moved_by == ("equalize",)
        assert "equalize changed what ops give to each other" in str(found)


def test_an_op_that_breaks_is_where_error_jumps(data: Tensor) -> None:
    model = randomized(ResidualNet(6))
    prepared = subbyte.prepare(model, "w8a8", data)
    prepared.linear.bias.data.fill_(torch.inf)
    found = subbyte.compare(model, prepared, data)
    assert found.first_jump == "linear"
    assert found.worst(1)[0].name == "linear"
    assert math.isnan(found.output_sqnr)
    assert "20 values are NaN or infinite" in str(found)
    assert found["linear"].remedies[0].methods == ("fp32",)


def test_printing_shows_each_op(compared: Comparison) -> None:
    lines = str(compared).splitlines()
    for op in compared.ops:
        assert any(re.match(rf"│ {op.name} +│ {op.type} ", line) for line in lines)
    assert f"error first jumps at {compared.first_jump}" in str(compared)


def test_json_holds_every_figure(compared: Comparison, tmp_path: Path) -> None:
    compared.save(tmp_path / "found.json")
    read = json.loads((tmp_path / "found.json").read_text())
    assert [op["name"] for op in read["ops"]] == ["conv1", "conv2", "add", "linear"]
    assert read["output_sqnr"] == compared.output_sqnr
    assert read["ops"][1]["own_error"] == compared["conv2"].own_error
    assert read["ops"][1]["quantizers"][0]["codes_used"] == compared["conv2"].quantizers[0].codes_used
    assert read["ops"][1]["remedies"][0]["methods"] == list(compared["conv2"].remedies[0].methods)


def test_the_page_needs_nothing_else(compared: Comparison, tmp_path: Path) -> None:
    compared.save(tmp_path / "found.html")
    text = (tmp_path / "found.html").read_text()
    page = Page(text)
    page.check_alone(text)
    assert len(text) < 50_000


def test_the_page_draws_each_op(compared: Comparison, tmp_path: Path) -> None:
    compared.save(tmp_path / "found.html")
    page = Page((tmp_path / "found.html").read_text())
    points = [attributes for tag, attributes in page.tags if tag == "circle"]
    bars = {kind: [each for tag, each in page.tags if tag == "rect" and each.get("class") == kind] for kind in
            ("weight", "input", "jump")}  # fmt: skip
    assert len(points) == 4
    assert len(bars["weight"]) == 3  # the add has none
    assert len(bars["input"]) == 4
    assert len(bars["jump"]) == 2  # in both charts
    highest = max(float(each["height"]) for each in bars["weight"])
    worst = max(compared.ops, key=lambda op: op.weight_error or 0)
    top = max(op.own_error for op in compared.ops)
    assert highest == pytest.approx(210 * worst.weight_error / top, rel=1e-6)
    bottoms = [float(each["y"]) + float(each["height"]) for each in bars["weight"]]
    assert bottoms == pytest.approx([220.0] * 3)
    stacked = sum(float(each["height"]) for kind in ("weight", "input") for each in bars[kind])
    assert stacked == pytest.approx(sum(210 * op.own_error / top for op in compared.ops), rel=1e-6)
    heights = [220 - float(each["cy"]) for each in points]
    assert heights == pytest.approx([210 * min(max(op.sqnr, 0), 60) / 60 for op in compared.ops], rel=1e-6)


def test_names_are_text_to_the_page(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("<b>&", nn.Linear(4, 4))
    model.add_module("2", nn.Linear(4, 4))
    data = seeded((8, 4))
    subbyte.compare(model.eval(), subbyte.quantize(model, "w2a8", data), data).save(tmp_path / "found.html")
    assert "<b>&" in Page((tmp_path / "found.html").read_text()).words


def test_names_are_text_to_the_table() -> None:
    model, data = nn.Sequential(), seeded((8, 4))
    model.add_module("[red]", nn.Linear(4, 4))
    model.add_module("[/bold]", nn.Linear(4, 4))
    text = str(subbyte.compare(model.eval(), subbyte.quantize(model, "w8a8", data), data))
    assert "[red]" in text
    assert "[/bold]" in text


def test_other_files_are_refused(compared: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"saved as \.json or \.html"):
        compared.save(tmp_path / "found.pdf")
    with pytest.raises(ConfigError, match="there is no folder"):
        compared.save(tmp_path / "none" / "found.json")


def test_ops_that_stay_float_show_what_reaches_them() -> None:
    model, batch = tiny_transformer("llama"), {"input_ids": torch.arange(24).view(2, 12)}
    found = subbyte.compare(model, subbyte.quantize(model, "w4:g32", [batch]), [batch])
    softened = [op for op in found.ops if op.precision == "float"]
    assert softened
    assert all(op.own_error is None and not op.quantizers and op.sqnr < 40 for op in softened)
    assert not any(op.remedies for op in softened)
    str(found)


@pytest.mark.parametrize(
    ("config", "costly"),
    [({"precision": "w8a8"}, "backbone.layers.0.mixer.out_proj"), (combining("w8a8"), "backbone.norm_f.mul")],
)
def test_doctor_names_the_op_that_costs_a_mamba_most(config: dict[str, Any], costly: str) -> None:
    """The SQNR of the model's output gains most when the op that the doctor names is left in float."""
    model, tokens = tiny_transformer("mamba"), torch.randint(64, (4, 24), generator=torch.Generator().manual_seed(1))

    def sqnr(floats: list[str]) -> float:
        request = config | {"op_name_dict": dict.fromkeys(floats, "fp32")}
        with torch.no_grad():
            y, found = model(tokens).logits, subbyte.prepare(model, request, tokens)(tokens).logits
        return 10 * math.log10(y.square().sum() / (y - found).square().sum())

    found = subbyte.compare(model, subbyte.prepare(model, config, tokens), tokens)
    without = {op.name: sqnr([op.name]) for op in found.ops if op.quantizers}
    assert max(without, key=lambda name: without[name]) == found.first_jump == costly
    assert without[costly] > sqnr([]) + 1.5


def test_ops_that_no_batch_came_to_are_told() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, first: bool = True) -> Tensor:
            return self.one(x) if first else self.other(x)

    model, x = randomized(Either()), seeded((4, 4))
    found = subbyte.compare(model, subbyte.quantize(model, "w4a8", [(x, True), (x, False)]), x)
    assert [op.name for op in found.ops] == ["one"]
    assert found.unreached == ("other",)
    assert "reached by no batch: other" in str(found)
