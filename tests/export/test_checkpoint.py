"""save and load: same output, true size, refusal of everything that is not right."""

import copy
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import subbyte
from networks import ResidualNet, UNet, randomized, seeded, tiny_transformer
from subbyte import CheckpointError, ModelError
from subbyte.calibration import Distribution, Histogram, MinMax, Statistics, registry
from subbyte.cli import main
from subbyte.dtypes import registry as dtypes_registry
from subbyte.export import safe_file
from subbyte.export.checkpoint import read_report
from subbyte.numerics import scheme_of, schemes
from subbyte.spec import OpConfig, QuantParams, TensorSpec, TuneConfig


@pytest.fixture
def images() -> torch.Tensor:
    return seeded((4, 3, 8, 8))


@pytest.fixture
def checkpoint(tmp_path: Path, images: torch.Tensor) -> Path:
    subbyte.save(subbyte.quantize(randomized(ResidualNet()), "w4a8", images), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    "config", ["w8a8", "w4a4", "w3a5:mse", "w4:g4", "w4a8:dynamic:g2", "wnf4", "wternarya8", "w1a1"]
)
@pytest.mark.parametrize("network", [ResidualNet, UNet])
def test_round_trip_is_exact(tmp_path: Path, images: torch.Tensor, config: str, network: type[nn.Module]) -> None:
    quantized = subbyte.quantize(randomized(network()), config, images)
    expected = quantized(images)
    subbyte.save(quantized, tmp_path / "model.safetensors")
    loaded = subbyte.load(tmp_path / "model.safetensors", network())
    assert torch.equal(loaded(images), expected)
    assert subbyte.summary(loaded).to_dict() == subbyte.summary(quantized).to_dict()
    assert subbyte.explain(loaded, "head" if network is UNet else "conv1")
    assert not loaded.training


@pytest.mark.parametrize("kind", [Histogram, MinMax])
def test_an_algorithm_of_the_users_is_not_needed_to_load(
    tmp_path: Path, images: torch.Tensor, kind: type[Statistics], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_ALGORITHMS", dict(registry._ALGORITHMS))

    @subbyte.register_algorithm("half_range", kind)
    def half_range(distribution: Distribution, spec: TensorSpec) -> QuantParams:
        return scheme_of(spec).from_range(distribution.minimum / 2, distribution.maximum / 2, spec)

    quantized = subbyte.quantize(randomized(ResidualNet()), "w4a8:half_range", images)
    subbyte.save(quantized, tmp_path / "model.safetensors")
    del registry._ALGORITHMS["half_range"]
    loaded = subbyte.load(tmp_path / "model.safetensors", ResidualNet())
    assert torch.equal(loaded(images), quantized(images))
    assert subbyte.summary(loaded).to_dict() == subbyte.summary(quantized).to_dict()
    assert "half_range" in subbyte.summary(loaded).rows[0]["realized"]
    subbyte.save(loaded, tmp_path / "again.safetensors")
    assert torch.equal(subbyte.load(tmp_path / "again.safetensors", ResidualNet())(images), quantized(images))


class Scores(nn.Module):
    """A weighted op and a product of two activations."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y @ y.mT


@pytest.mark.parametrize("with_data", [True, False])
def test_a_type_of_the_users_comes_with_the_checkpoint(
    tmp_path: Path, with_data: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtypes_registry, "_REGISTRY", dict(dtypes_registry._REGISTRY))
    for name, values in (("of_weights", (-1, -0.25, 0, 1)), ("of_products", (-1, -0.5, 0, 0.25))):
        subbyte.register_dtype(subbyte.DataType(name, values=values))
    products = {"activation": {"dtype": "of_products"}}
    config = {"precision": "wof_weightsa8:dynamic", "op_type_dict": {"matmul": products}}
    x = seeded((4, 8))
    quantized = subbyte.quantize(randomized(Scores()), config, x if with_data else None)
    subbyte.save(quantized, tmp_path / "model.safetensors")
    expected = quantized(x)
    for name in ("of_weights", "of_products"):
        del dtypes_registry._REGISTRY[name]
    loaded = subbyte.load(tmp_path / "model.safetensors", Scores())
    assert torch.equal(loaded(x), expected)
    rows = {row["name"]: row for row in subbyte.summary(loaded).rows}
    assert rows["linear"]["weight_dtype"] == "of_weights"
    assert rows["matmul"]["activation_dtype"] == "of_products"


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_transformers_round_trip(tmp_path: Path, name: str) -> None:
    model = tiny_transformer(name)
    batch = {"input_ids": torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))}
    quantized = subbyte.quantize(model, "w4a8", [batch])
    with torch.no_grad():
        expected = quantized(**batch)[0]
        subbyte.save(quantized, tmp_path / "model.safetensors")
        assert torch.equal(subbyte.load(tmp_path / "model.safetensors", model)(**batch)[0], expected)


def test_codes_take_their_true_size(tmp_path: Path) -> None:
    model, sizes = nn.Sequential(nn.Linear(256, 1024, bias=False)), {}
    for config in ("w8", "w4", "w2", "w1"):
        path = tmp_path / f"{config}.safetensors"
        quantized = subbyte.quantize(model, config)
        subbyte.save(quantized, path)
        with safe_open(str(path), "pt") as file:
            packed = file.get_tensor("0.weight.packed")
        sizes[config] = packed.numel()
        assert path.stat().st_size < packed.numel() + 1024 * 4 + 8192
    count = 256 * 1024
    assert sizes == {"w8": count, "w4": count // 2, "w2": count // 4, "w1": count // 8}


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    model = tiny_transformer("gpt2")
    quantized = subbyte.quantize(model, "w4")
    subbyte.save(quantized, tmp_path / "model.safetensors")
    with safe_open(str(tmp_path / "model.safetensors"), "pt") as file:
        names = set(file.keys())
    assert len({"transformer.wte.weight.packed", "lm_head.weight.packed"} & names) == 1
    loaded = subbyte.load(tmp_path / "model.safetensors", model)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


def test_no_pickle_and_a_readable_header(checkpoint: Path) -> None:
    with safe_open(str(checkpoint), "pt") as file:
        header = json.loads(file.metadata()["subbyte"])
    assert header["format"] == 4
    assert read_report(checkpoint)["rows"] == header["report"]["rows"]


def test_a_truncated_file_is_refused(checkpoint: Path) -> None:
    data = checkpoint.read_bytes()
    for length in (0, 5, 100, len(data) // 2, len(data) - 1):
        checkpoint.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            subbyte.load(checkpoint, ResidualNet())


def test_an_altered_file_is_refused(checkpoint: Path) -> None:
    data = bytearray(checkpoint.read_bytes())
    for position in (len(data) - 1, len(data) - 500, data.find(b"uint8") + 4):
        changed = data.copy()
        changed[position] ^= 1
        checkpoint.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"altered|damaged"):
            subbyte.load(checkpoint, ResidualNet())


def test_another_model_is_refused(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="another model"):
        subbyte.load(checkpoint, ResidualNet(8))
    with pytest.raises(CheckpointError, match="another model"):
        subbyte.load(checkpoint, UNet())


def test_a_model_of_other_settings_is_refused(checkpoint: Path) -> None:
    other = ResidualNet()
    other.conv1.padding = (0, 0)
    for wrong in (other, ResidualNet().half()):
        with pytest.raises(CheckpointError, match="another model"):
            subbyte.load(checkpoint, wrong)


class Overlapping(nn.Module):
    """Has buffers that are parts of another, that overlap with themselves, and that are one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("whole", torch.arange(6.0))
        self.register_buffer("view", self.whole[2:5])
        self.register_buffer("part", self.whole.data[1:3])
        self.register_buffer("folded", self.whole.data.view(2, 3))
        self.register_buffer("same", self.whole)
        self.register_buffer("expanded", torch.arange(2.0)[:, None].expand(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.whole + self.view.sum() + self.folded.sum() + self.expanded.sum()


@pytest.mark.parametrize("config", ["w4", "w4a8"])
def test_buffers_that_overlap_in_memory(tmp_path: Path, config: str) -> None:
    model, x = randomized(Overlapping()), seeded((4, 6))
    quantized = subbyte.quantize(model, config, x)
    subbyte.save(quantized, tmp_path / "model.safetensors")
    loaded = subbyte.load(tmp_path / "model.safetensors", model)
    for name, buffer in model.named_buffers():
        assert torch.equal(loaded.get_buffer(name), buffer), name
    with torch.no_grad():
        assert torch.equal(loaded(x), quantized(x))
    assert model.expanded.stride() == (1, 0)


class Counting(nn.Linear):
    """Keeps a count as extra state; of the kind that `state` makes of it."""

    state: Callable[[int], Any] = torch.tensor
    count = 0

    def get_extra_state(self) -> Any:
        return type(self).state(self.count)

    def set_extra_state(self, state: Any) -> None:
        self.count = int(state)


class CountingByInt(Counting):
    state = int


class Versioned(nn.Linear):
    """Loads only what it saved itself, as torchvision's MNASNet does."""

    _version = 2

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *args: Any) -> None:
        if local_metadata.get("version") != 2:
            raise ValueError(f"version must be 2, got {local_metadata.get('version')}")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


@pytest.mark.parametrize("config", ["w4", {"precision": "w4", "op_name_dict": {"1": "fp32"}}])
def test_the_versions_of_modules_come_back(tmp_path: Path, config: Any) -> None:
    model, x, path = nn.Sequential(nn.Linear(6, 6), Versioned(6, 6)), seeded((4, 6)), tmp_path / "model.safetensors"
    quantized = subbyte.quantize(randomized(model), config)
    subbyte.save(quantized, path)
    assert torch.equal(subbyte.load(path, model)(x), quantized(x))
    tensors, header = safe_file.read(path)
    assert header["versions"] == {"1": 2}
    safe_file.write(path, tensors, header | {"versions": {}})
    with pytest.raises(CheckpointError, match="ValueError: version must be 2, got 1"):
        subbyte.load(path, model)


@pytest.mark.parametrize("wrap", [nn.Sequential, lambda module: module])
def test_an_extra_state_is_saved_where_it_is_a_tensor(tmp_path: Path, wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, x, path = Counting(6, 6), seeded((4, 6)), tmp_path / "model.safetensors"
    model.count = 3
    quantized = subbyte.quantize(wrap(model), "w4a8", x)
    model.count = 0
    subbyte.save(quantized, path)
    loaded = subbyte.load(path, wrap(model))
    assert [module.count for module in loaded.modules() if isinstance(module, Counting)] == [3]
    with pytest.raises(ModelError, match=r"module '0?' has an extra state .* that is a int;.* give it as a tensor"):
        subbyte.save(subbyte.quantize(wrap(CountingByInt(6, 6)), "w4a8", x), path)


def test_a_quantized_model_is_no_float_model(checkpoint: Path, images: torch.Tensor) -> None:
    with pytest.raises(ModelError, match="quantized already"):
        subbyte.load(checkpoint, subbyte.quantize(ResidualNet(), "w4a4", images))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        subbyte.load(tmp_path / "missing", ResidualNet())
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"not a checkpoint that subbyte.save wrote"):
        subbyte.load(tmp_path / "other.safetensors", ResidualNet())
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CheckpointError, match="damaged"):
        subbyte.load(tmp_path / "text", ResidualNet())


def test_another_format_is_refused(checkpoint: Path) -> None:
    tensors, header = safe_file.read(checkpoint)
    safe_file.write(checkpoint, tensors, header | {"format": 99})
    with pytest.raises(CheckpointError, match="format 99"):
        subbyte.load(checkpoint, ResidualNet())


@pytest.mark.parametrize("path", [None, 3, b"model"])
def test_what_is_no_path(images: torch.Tensor, path: object) -> None:
    with pytest.raises(CheckpointError, match=r"a str or a pathlib\.Path, not"):
        subbyte.save(subbyte.quantize(ResidualNet(), "w4a4", images), path)
    with pytest.raises(CheckpointError, match=r"a str or a pathlib\.Path, not"):
        subbyte.load(path, ResidualNet())


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "loop"])
def test_a_path_that_can_be_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for call in (
        lambda: subbyte.save(subbyte.quantize(ResidualNet(), "w4"), tmp_path / name),
        lambda: subbyte.load(tmp_path / name, ResidualNet()),
    ):
        with pytest.raises(CheckpointError, match=f"{re.escape(repr(name)[1:-1])}' names no file that can be"):
            call()


def test_a_name_of_the_greatest_length(tmp_path: Path) -> None:
    subbyte.save(subbyte.quantize(ResidualNet(), "w4"), tmp_path / ("x" * 255))
    assert [path.name for path in tmp_path.iterdir()] == ["x" * 255]


def test_a_folder(tmp_path: Path, images: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match="is a folder; name a file in it"):
        subbyte.save(subbyte.quantize(ResidualNet(), "w4a4", images), tmp_path)
    with pytest.raises(CheckpointError, match="is a folder; name a file in it"):
        subbyte.load(tmp_path, ResidualNet())
    assert not list(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"\. is a folder"):
        subbyte.load("", ResidualNet())


def test_figures_that_are_not_finite_are_valid_json_and_come_back(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", nn.Sequential(nn.Linear(3, 2))
    nn.init.constant_(model[0].weight, 0.25)
    quantized = subbyte.quantize(model, "w1")
    assert subbyte.summary(quantized).rows[0]["weight_sqnr"] == math.inf
    subbyte.save(quantized, path)
    with safe_open(str(path), "pt") as file:
        json.loads(file.metadata()["subbyte"], parse_constant=pytest.fail)
    assert subbyte.summary(subbyte.load(path, model)).rows == subbyte.summary(quantized).rows
    assert read_report(path)["rows"] == subbyte.summary(quantized).rows
    shown = CliRunner().invoke(main.app, ["summary", str(path), "--json"]).stdout
    assert json.loads(shown, parse_constant=pytest.fail)["rows"][0]["weight_sqnr"] == "Infinity"
    assert " inf " in CliRunner().invoke(main.app, ["summary", str(path)]).stdout


def test_an_interrupted_save_keeps_the_old_file(
    checkpoint: Path, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = checkpoint.read_bytes()
    quantized = subbyte.quantize(randomized(ResidualNet(), 1), "w2a8", images)

    def fail(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(CheckpointError, match="no space left"):
        subbyte.save(quantized, checkpoint)
    assert checkpoint.read_bytes() == before
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_a_link(tmp_path: Path, images: torch.Tensor, exists: bool) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "here" / "latest", tmp_path / "there" / "model.safetensors"
    link.symlink_to("../there/model.safetensors")
    quantized = subbyte.quantize(randomized(ResidualNet()), "w4a8", images)
    if exists:
        target.write_text("an older one")
    subbyte.save(quantized, link)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert torch.equal(subbyte.load(target, ResidualNet())(images), quantized(images))
    assert torch.equal(subbyte.load(link, ResidualNet())(images), quantized(images))
    assert [list(folder.iterdir()) for folder in (link.parent, target.parent)] == [[link], [target]]


def test_a_folder_that_is_not_there(tmp_path: Path, images: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match="cannot write"):
        subbyte.save(subbyte.quantize(ResidualNet(), "w4a4", images), tmp_path / "no" / "model.safetensors")


def test_only_converted_models_are_saved(tmp_path: Path, images: torch.Tensor) -> None:
    with pytest.raises(ModelError, match="convert"):
        subbyte.save(subbyte.prepare(ResidualNet(), "w4a4", images), tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="not quantized"):
        subbyte.save(ResidualNet(), tmp_path / "model.safetensors")


def chain() -> nn.Module:
    return randomized(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(0.1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))
    )


def _exchange(model: nn.Module) -> None:
    model[3], model[4] = model[4], model[3]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda model: model.__setitem__(0, nn.Conv2d(3, 4, 3)), "0"),
        (lambda model: model.__setitem__(1, nn.BatchNorm2d(4)), "1"),
        (lambda model: model.__setitem__(2, nn.LeakyReLU(0.5)), "2"),
        (lambda model: model.__setitem__(3, subbyte.quantize(chain(), "w4a4", seeded((4, 3, 8, 8)))[3]), "3"),
        (lambda model: model.__delitem__(4), "4"),
        (lambda model: model.append(nn.ReLU()), "5"),
        (_exchange, "3"),
    ],
    ids=["conv", "norm", "activation", "op of another model", "removed", "added", "exchanged"],
)
def test_a_model_whose_modules_were_replaced_is_not_saved(
    tmp_path: Path, images: torch.Tensor, change: Callable[[nn.Module], None], name: str
) -> None:
    quantized = subbyte.quantize(chain(), "w4a4", images)
    change(quantized)
    with pytest.raises(ModelError, match=f"module '{name}' was replaced, added or removed"):
        subbyte.save(quantized, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [copy.deepcopy, nn.Module.half, nn.Module.train, lambda model: model])
def test_copies_casts_and_modes_are_no_replacements(
    tmp_path: Path, images: torch.Tensor, change: Callable[[nn.Module], nn.Module]
) -> None:
    quantized = change(subbyte.quantize(chain(), "w4a4", images))
    subbyte.save(quantized, tmp_path / "model.safetensors")
    loaded = subbyte.load(tmp_path / "model.safetensors", chain())
    subbyte.save(loaded, tmp_path / "again.safetensors")
    assert torch.equal(subbyte.load(tmp_path / "again.safetensors", chain())(images), loaded(images))


def test_functional_ops_that_no_forward_has_shown_are_found_after_loading(tmp_path: Path) -> None:
    model = tiny_transformer("bert")
    batch = {"input_ids": torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))}
    quantized = subbyte.quantize(model, "w4a8:dynamic")
    subbyte.save(quantized, tmp_path / "model.safetensors")
    loaded = subbyte.load(tmp_path / "model.safetensors", model)
    with torch.no_grad():
        assert torch.equal(loaded(**batch)[0], quantized(**batch)[0])
    subbyte.save(quantized, tmp_path / "later.safetensors")  # the forward has swapped modules; none was replaced
    types = {row["type"]: row["activation_dtype"] for row in subbyte.summary(loaded).rows}
    assert types["scaled_dot_product_attention"] == "uint8"


def test_values_that_stayed_float_are_the_saved_ones(checkpoint: Path, images: torch.Tensor) -> None:
    one, other = subbyte.load(checkpoint, randomized(ResidualNet(), 5)), subbyte.load(checkpoint, ResidualNet())
    assert torch.equal(one(images), other(images))


def test_a_data_type_that_clashes_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    tensors, header = safe_file.read(checkpoint)
    header["dtypes"]["int4"]["narrow"] = True
    safe_file.write(checkpoint, tensors, header)
    with pytest.raises(CheckpointError, match="int4"):
        subbyte.load(checkpoint, ResidualNet())


def test_a_scheme_is_to_be_registered_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemes, "_SCHEMES", dict(schemes._SCHEMES))
    subbyte.register_scheme("rounded", schemes.Symmetric())
    spec = TensorSpec("int4", "rounded")
    config = TuneConfig({("0", "Linear"): OpConfig(spec, quant_mode="weight_only")})
    net = nn.Sequential(nn.Linear(4, 3))
    subbyte.save(subbyte.quantize(net, config), tmp_path / "model.safetensors")
    assert subbyte.load(tmp_path / "model.safetensors", net)
    del schemes._SCHEMES["rounded"]
    with pytest.raises(CheckpointError, match=r"call subbyte.register_scheme\('rounded', ...\) before"):
        subbyte.load(tmp_path / "model.safetensors", net)
