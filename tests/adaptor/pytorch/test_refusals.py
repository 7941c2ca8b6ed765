"""Models that cannot be quantized are refused before anything happens to them."""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import subbyte
from networks import ResidualNet, randomized, seeded

X = seeded((2, 3, 7, 6))


def refused(model: Any, match: str, config: str = "w4a4", data: Any = X) -> None:
    for call in (subbyte.prepare, subbyte.quantize):
        with pytest.raises(subbyte.ModelError, match=match):
            call(model, config, data)
    with pytest.raises(subbyte.ModelError, match=match):
        subbyte.query_fw_capability(model, data)


@pytest.mark.parametrize("kind", ["prepare", "quantize"])
def test_a_quantized_model_and_any_part_of_one(kind: str) -> None:
    quantized = getattr(subbyte, kind)(randomized(ResidualNet()), "w4a4", X)
    refused(quantized, "already")
    refused(nn.Sequential(nn.Identity(), quantized), "already")
    refused(nn.Sequential(quantized.conv2, nn.Conv2d(6, 3, 1)), "already")


def test_a_forward_replaced_on_the_object() -> None:
    model = ResidualNet()
    model.conv1.forward = lambda x: x
    refused(model, r"conv1.*forward")


def test_parametrized_weights() -> None:
    model = ResidualNet()
    parametrizations.weight_norm(model.conv2)
    refused(model, r"conv2.*parametriz")


def _as_buffer(module: nn.Module) -> None:
    weight = module.weight.detach()
    del module.weight
    module.register_buffer("weight", weight)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (weight_norm, "remove_weight_norm"),
        (spectral_norm, "remove_spectral_norm"),
        (lambda module: prune.l1_unstructured(module, "weight", 0.3), r"prune\.remove"),
        (lambda module: prune.l1_unstructured(module, "bias", 0.3), r"prune\.remove"),
        (_as_buffer, "Parameter"),
    ],
    ids=["weight_norm", "spectral_norm", "pruned weight", "pruned bias", "buffer"],
)
def test_weights_that_are_no_parameters(change: Callable[[nn.Module], Any], match: str) -> None:
    model = randomized(ResidualNet())
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # the old weight_norm
        change(model.conv2)
    refused(model, rf"'conv2'.*{match}")


@pytest.mark.parametrize("kind", ["lock", "generator", "tensor with a history"])
def test_what_cannot_be_copied_is_named(tmp_path: Path, kind: str) -> None:
    def obstructed() -> nn.Module:
        model = randomized(ResidualNet())
        obstacles = {
            "lock": threading.Lock(),
            "generator": (i for i in range(3)),
            "tensor with a history": model.conv1.weight * 2,
        }
        model.bn1.obstacle = obstacles[kind]
        return model

    refused(obstructed(), r"copied: 'obstacle' of module 'bn1'")
    prepared = subbyte.prepare(randomized(ResidualNet()), "w4a4", X)
    subbyte.save(subbyte.convert(prepared), tmp_path / "model.safetensors")
    prepared.obstacle = obstructed().bn1.obstacle
    for call in (
        lambda: subbyte.load(tmp_path / "model.safetensors", obstructed()),
        lambda: subbyte.convert(prepared),
    ):
        with pytest.raises(subbyte.ModelError, match="'obstacle' of") as raised:
            call()
        assert isinstance(raised.value.__cause__, TypeError | RuntimeError)


def test_what_is_no_module_or_has_no_ops() -> None:
    refused("model", "Module")
    refused(lambda x: x, "Module")
    with pytest.raises(subbyte.ModelError, match="no op"):
        subbyte.quantize(nn.Sequential(nn.ReLU()), "w4a4", X)


def test_torchscript() -> None:
    with pytest.warns(DeprecationWarning, match="jit"):
        scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3)))
    refused(scripted, "the model is TorchScript")


@pytest.mark.parametrize("config", ["w8", "w8a8"])
@pytest.mark.parametrize("script", [torch.jit.script, lambda module: torch.jit.trace(module, seeded((2, 3)))])
def test_a_part_that_is_torchscript(script: Callable[[nn.Module], nn.Module], config: str) -> None:
    with pytest.warns(DeprecationWarning, match="jit"):
        model = nn.Sequential(nn.Linear(3, 3), script(nn.Linear(3, 3)))
    refused(model, "module '1' is TorchScript", config, seeded((2, 3)))


def test_compiled_models() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), seeded((2, 3))
    refused(torch.compile(model, backend="eager"), r"the model is compiled \(torch\.compile\).*_orig_mod", data=x)
    prepared = subbyte.prepare(model, "w8a8", x)
    model[1] = torch.compile(model[1], backend="eager")
    refused(model, "module '1' is compiled", data=x)
    with pytest.raises(subbyte.ModelError, match="the model is compiled"):
        subbyte.convert(torch.compile(prepared, backend="eager"))
    with pytest.raises(subbyte.ModelError, match="the model is compiled"):
        subbyte.save(torch.compile(subbyte.convert(prepared), backend="eager"), "never-written")
    assert not Path("never-written").exists()


@pytest.mark.parametrize("what", [3, None, [nn.Linear(3, 3)], "model"])
@pytest.mark.parametrize(
    "call",
    [
        subbyte.weights,
        subbyte.summary,
        subbyte.convert,
        lambda model: subbyte.explain(model, "conv1"),
        lambda model: subbyte.save(model, "never-written"),
    ],
)
def test_what_is_no_module_is_not_quantized(call: Callable[[Any], Any], what: Any) -> None:
    with pytest.raises(subbyte.ModelError, match=r"(expected a quantized torch.nn.Module, got|is not quantized)"):
        call(what)


@pytest.mark.parametrize("name", [3, None, ["conv1"]])
def test_what_is_no_name_has_no_explanation(name: Any) -> None:
    with pytest.raises(subbyte.ConfigError, match="the model has no op"):
        subbyte.explain(subbyte.quantize(ResidualNet(), "w4"), name)


def test_embedding_that_rewrites_its_table() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=1.0))
    with pytest.raises(subbyte.ModelError, match="max_norm"):
        subbyte.quantize(model, "w4")


def test_convert_needs_a_prepared_model() -> None:
    model = randomized(ResidualNet())
    with pytest.raises(subbyte.ModelError, match="not quantized"):
        subbyte.convert(model)
    with pytest.raises(subbyte.ModelError, match="already"):
        subbyte.convert(subbyte.quantize(model, "w4a4", X))
    for call in (subbyte.summary, subbyte.weights):
        with pytest.raises(subbyte.ModelError, match="not quantized"):
            call(model)


def test_static_activations_need_data() -> None:
    with pytest.raises(subbyte.CalibrationError, match="data"):
        subbyte.quantize(ResidualNet(), "w4a4")


def test_nan_in_data_names_the_op() -> None:
    bad = X.clone()
    bad[0, 0, 0, 0] = torch.nan
    with pytest.raises(subbyte.CalibrationError, match="conv1"):
        subbyte.quantize(ResidualNet(), "w4a4", bad)


def test_nan_in_a_weight_names_the_op() -> None:
    model = ResidualNet()
    model.conv2.weight.data[0, 0] = torch.inf
    with pytest.raises(subbyte.CalibrationError, match="conv2"):
        subbyte.quantize(model, "w4")


def test_scales_that_do_not_fit_in_fp16_name_the_op() -> None:
    model = randomized(ResidualNet())
    formats = {"int8": {"static": {"Conv2d": {"activation": {"scale_format": ["fp16"]}}}}}
    capability = subbyte.load_capability({"extends": "pytorch_cpu", "capabilities": formats})
    with pytest.raises(subbyte.CalibrationError, match=r"input of op 'conv1.*need a scale"):
        subbyte.quantize(model, "w8a8", X * 1e-9, capability=capability)
    with torch.no_grad():
        model.conv2.weight.mul_(1e-9)
    with pytest.raises(subbyte.CalibrationError, match=r"weight of op 'conv2'.*need a scale"):
        subbyte.quantize(model, {"op_type_dict": {"Conv2d": {"weight": {"scale_format": "fp16"}}}}, X)


def test_data_of_the_wrong_shape_is_one_clear_error() -> None:
    with pytest.raises(subbyte.CalibrationError, match=r"batch 1.*\(2, 4, 7, 6\)"):
        subbyte.quantize(ResidualNet(), "w4a4", [X, seeded((2, 4, 7, 6))])
