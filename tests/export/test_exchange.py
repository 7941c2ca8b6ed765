"""export_checkpoint and import_checkpoint: what is not weight-only, not whole or not of this model is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte import CheckpointError, ModelError
from subbyte.dtypes import registered_dtypes
from subbyte.export import safe_file


class Net(nn.Module):
    """Linear layers with biases, a normalisation with buffers, and a layer called by a name of its own."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(32, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(width, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


X = seeded((4, 32))
CONFIG = {"precision": "w4:g16", "op_type_dict": {"Linear": {"weight": {"scale_format": "fp16"}}}}


def quantized() -> nn.Module:
    return subbyte.quantize(randomized(Net()), CONFIG)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    subbyte.export_checkpoint(quantized(), tmp_path / "model", format="gptq")
    return tmp_path / "model"


@pytest.mark.parametrize("format", ["compressed-tensors", "gptq", "gptq_v2"])
def test_any_model_goes_there_and_back(tmp_path: Path, format: str) -> None:
    model = quantized()
    subbyte.export_checkpoint(model, tmp_path / "model", format=format)
    assert {file.name for file in tmp_path.iterdir()} == {"model"}
    float_model = Net()
    before = {name: value.clone() for name, value in float_model.state_dict().items()}
    read = subbyte.import_checkpoint(tmp_path / "model", float_model)
    assert torch.equal(read(X), model(X))
    assert not read.training
    assert all(torch.equal(value, before[name]) for name, value in float_model.state_dict().items())
    rows = {row["name"]: row for row in subbyte.summary(read).rows}
    assert rows["first"]["realized"] == "w:int4 sym per_group(16) minmax scale_format=fp16 weight_only"
    assert rows["first"]["requested"] == rows["first"]["realized"]
    assert "the checkpoint" in subbyte.explain(read, "first")


class Versioned(nn.BatchNorm1d):
    """A module that reads its tensors by its version, as mnasnet of torchvision does."""

    _version = 3

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any) -> None:
        if local_metadata.get("version") != 3 or self.eps > 1:
            raise ValueError("version must be 3, and eps at most 1")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def versioned() -> Net:
    net = Net()
    net.norm = Versioned(32)
    return net


def test_import_checkpoint_keeps_versions_of_modules(tmp_path: Path) -> None:
    model = subbyte.quantize(randomized(versioned()), CONFIG)
    subbyte.export_checkpoint(model, tmp_path / "model", format="gptq")
    assert torch.equal(subbyte.import_checkpoint(tmp_path / "model", versioned())(X), model(X))


def test_import_checkpoint_refuses_tensors_that_a_module_refuses(tmp_path: Path, folder: Path) -> None:
    net = versioned()
    net.norm.eps = 2.0
    with pytest.raises(CheckpointError, match=r"model: .*ValueError: version must be 3"):
        subbyte.import_checkpoint(folder, net)


def test_a_model_that_is_itself_the_op(tmp_path: Path) -> None:
    model = subbyte.quantize(randomized(nn.Linear(32, 32)), "w4:g16")
    subbyte.export_checkpoint(model, tmp_path / "model", format="compressed-tensors")
    read = subbyte.import_checkpoint(tmp_path / "model", nn.Linear(32, 32))
    assert torch.equal(read(X), model(X))


def test_a_model_that_was_read_is_like_any_other(tmp_path: Path, folder: Path) -> None:
    read = subbyte.import_checkpoint(folder, Net())
    expected = read(X)
    subbyte.save(read, tmp_path / "model.safetensors")
    assert torch.equal(subbyte.load(tmp_path / "model.safetensors", Net())(X), expected)
    assert torch.allclose(subbyte.use_kernels(read)(X), expected, rtol=1e-5, atol=1e-5)  # sums in another order


def test_a_model_on_kernels_is_written(tmp_path: Path) -> None:
    expected = quantized()(X)
    subbyte.export_checkpoint(subbyte.use_kernels(quantized()), tmp_path / "model", format="compressed-tensors")
    assert torch.equal(subbyte.import_checkpoint(tmp_path / "model", Net())(X), expected)


def test_a_type_of_the_users_comes_back(tmp_path: Path) -> None:
    subbyte.register_dtype(subbyte.DataType("int4_narrow", bits=4, signed=True, narrow=True))
    model = subbyte.quantize(randomized(Net()), "wint4_narrow:g16:mse")
    subbyte.export_checkpoint(model, tmp_path / "model", format="compressed-tensors")
    read = subbyte.weights(subbyte.import_checkpoint(tmp_path / "model", Net()))["first"]
    assert (read.spec.dtype.name, read.spec.algorithm) == ("int4_narrow", "mse")
    assert torch.equal(read.codes, subbyte.weights(model)["first"].codes)


def test_shards_are_read(folder: Path) -> None:
    expected = subbyte.import_checkpoint(folder, Net())(X)
    stored = load_file(folder / "model.safetensors")
    names = sorted(stored)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: stored[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"without model\.safetensors\.index\.json$"):
        subbyte.import_checkpoint(folder, Net())
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(subbyte.import_checkpoint(folder, Net())(X), expected)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*model-00002-of-00002\.safetensors"):
        subbyte.import_checkpoint(folder, Net())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize(("format", "part"), [("gptq", "scales"), ("compressed-tensors", "weight_scale")])
def test_a_scale_that_is_no_positive_number(tmp_path: Path, format: str, part: str, value: float) -> None:
    subbyte.export_checkpoint(quantized(), tmp_path / "model", format=format)
    _edit(lambda stored: stored[f"first.{part}"].fill_(value))(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"op 'first': its scales, in torch\.float16, are not all finite"):
        subbyte.import_checkpoint(tmp_path / "model", Net())


def test_groups_with_a_scale_of_zero_are_zeros_and_can_be_saved(tmp_path: Path, folder: Path) -> None:
    _edit(lambda stored: stored["first.scales"][0].zero_())(folder)
    read = subbyte.import_checkpoint(folder, Net())
    weight = subbyte.weights(read)["first"].dequantize()
    assert not weight[:, :16].any()
    assert weight[:, 16:].any()
    subbyte.save(read, tmp_path / "model.safetensors")
    assert torch.equal(subbyte.load(tmp_path / "model.safetensors", Net())(X), read(X))


def test_a_refused_folder_registers_no_data_type(folder: Path) -> None:
    stored, metadata = safe_file.open_tensors(folder / "model.safetensors")
    noted = json.loads(metadata["subbyte_specs"])
    noted["dtypes"]["never_registered"] = {"bits": 4, "signed": True}
    stored["first.scales"].fill_(-1)
    save_file(stored, folder / "model.safetensors", {"format": "pt", "subbyte_specs": json.dumps(noted)})
    with pytest.raises(CheckpointError, match="scales"):
        subbyte.import_checkpoint(folder, Net())
    assert "never_registered" not in registered_dtypes()


@pytest.fixture
def sharded(folder: Path) -> Path:
    """A folder of two files, `a` with the tensors of the first layer, `b` with the others."""
    stored = load_file(folder / "model.safetensors")
    places = {name: "a.safetensors" if name.startswith("first") else "b.safetensors" for name in stored}
    for file in ("a.safetensors", "b.safetensors"):
        save_file({name: stored[name] for name in stored if places[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def _shard(folder: Path, file: str, change: Callable[[dict[str, Tensor]], Any]) -> None:
    stored = load_file(folder / file)
    change(stored)
    save_file(stored, folder / file)


def _places(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index["weight_map"])
    file.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda x: _shard(x, "b.safetensors", lambda b: b.update({"first.bias": X[0]})),
            "b.safetensors holds tensor 'fi",
        ),
        (
            lambda x: _shard(x, "a.safetensors", lambda a: a.update(zeros=X)),
            "a.safetensors holds tensor 'zeros', which",
        ),
        (
            lambda x: _shard(x, "a.safetensors", lambda a: a.pop("first.bias")),
            "a.safetensors lacks tensor 'first.bias'",
        ),
        (lambda x: _places(x, lambda places: places.update({"first.bias": "b.safetensors"})), "a.safetensors holds"),
        (lambda x: _places(x, lambda places: places.pop("first.bias")), "a.safetensors holds tensor 'first.bias'"),
        (lambda x: _places(x, lambda places: places.update(more="c.safetensors")), "no checkpoint at .*c.safetensors"),
        (lambda x: _places(x, lambda places: places.update(more="../a.safetensors")), "is no name of a file beside it"),
        (lambda x: _places(x, lambda places: places.update(more="/etc/passwd")), "is no name of a file beside it"),
        (lambda x: _places(x, lambda places: places.update(more="..")), "is no name of a file beside it"),
        (lambda x: _places(x, lambda places: places.update(more=None)), "is no name of a file beside it"),
    ],
)
def test_the_weight_map_says_where_each_tensor_is(sharded: Path, edit: Callable[[Path], None], message: str) -> None:
    assert subbyte.import_checkpoint(sharded, Net())
    edit(sharded)
    with pytest.raises(CheckpointError, match=message):
        subbyte.import_checkpoint(sharded, Net())


def test_what_is_not_weight_only(tmp_path: Path) -> None:
    def refused(model: nn.Module, message: str, error: type[Exception] = CheckpointError) -> None:
        with pytest.raises(error, match=message):
            subbyte.export_checkpoint(model, tmp_path / "model", format="gptq")
        assert list(tmp_path.iterdir()) == []

    net = randomized(Net())
    refused(net, "this model is not quantized", ModelError)
    refused(subbyte.prepare(net, "w4:g16"), "only a converted model is exported", ModelError)
    refused(subbyte.quantize(net, "w4a8", X), r"op 'first' quantizes its inputs \(.*uint8.*static\).*'w4:g32'")
    refused(subbyte.quantize(net, "w4a8:dynamic"), "op 'first' quantizes its inputs")
    refused(subbyte.quantize(net, CONFIG, X), "op 'first' has a BatchNorm folded into it.*without calibration data")
    refused(subbyte.quantize(randomized(ResidualNet()), "w4"), r"op 'conv1': its weight has 4 axes")
    refused(subbyte.quantize(nn.LSTM(32, 32), "w4"), "op 'ih_l0' is")
    refused(subbyte.quantize(net, "wnf4"), "op 'first': nf4 with scheme sym has no integer codes")
    replaced = quantized()
    replaced.second = nn.Linear(32, 32)
    refused(replaced, "module 'second' was replaced", ModelError)


def test_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'gtpq' is unknown; did you mean 'gptq'\? \(known: compressed-tensors"):
        subbyte.export_checkpoint(quantized(), tmp_path / "model", format="gtpq")


def test_nothing_is_overwritten(tmp_path: Path, folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="exists already, and is no empty folder; name a new or an empty one"):
        subbyte.export_checkpoint(quantized(), folder, format="gptq")
    assert (folder / "model.safetensors").read_bytes() == before
    (tmp_path / "empty").mkdir()
    subbyte.export_checkpoint(quantized(), tmp_path / "empty", format="gptq")
    with pytest.raises(CheckpointError, match=r"cannot write .*: No such file or directory"):
        subbyte.export_checkpoint(quantized(), tmp_path / "missing" / "model", format="gptq")


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("subbyte.export.partial_file.os.fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        subbyte.export_checkpoint(quantized(), tmp_path / "model", format="gptq")
    assert list(tmp_path.iterdir()) == []


def _edit(change: Callable[[dict[str, Tensor]], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        stored = load_file(folder / "model.safetensors")
        change(stored)
        save_file(stored, folder / "model.safetensors")

    return edit


def _truncate(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])


def _config(text: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / "config.json").write_text(text)
        (folder / "quantize_config.json").unlink()

    return edit


def _index(places: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {places}}}')

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_index("[]"), "index.json cannot be read: it has no weight_map"),
        (_index('{"first": 5}'), "index.json cannot be read: 5 is no name of a file beside it"),
        (_index(f'{{"first": "{"x" * 5_000}"}}'), r"^.{,1100}names no file that can be read.{,50}$"),
        (_index('{"first": "../model.safetensors"}'), "is no name of a file beside it"),
        (_config(f'{{"a": {"9" * 5_000}}}'), "config.json cannot be read: number out of range"),
        (_config("[" * 100_000), "config.json cannot be read"),
        (_truncate, "model.safetensors is damaged"),
        (_edit(lambda stored: stored.pop("first.scales")), "op 'first': its scales is missing"),
        (
            _edit(lambda stored: stored.pop("first.qweight")),
            "holds first.g_idx, first.qzeros, first.scales, ",
        ),
        (_edit(lambda stored: stored.pop("first.bias")), "lacks first.bias, which this model has"),
        (_edit(lambda stored: stored.update(extra=X)), "holds extra, which this model does not have"),
        (
            _edit(lambda stored: stored.update({"first.bias": X[0, :8]})),
            r"first.bias has shape \(8,\), and in",
        ),
        (_edit(lambda stored: stored.update({"first.qweight": X})), "there is torch.float32 of shape"),
        (_config("{"), "config.json cannot be read"),
        (_config("{}"), "it says nothing of quantization"),
        (_config('{"quantization_config": {"quant_method": "hqq"}}'), "its quant_method is 'hqq'"),
    ],
)
def test_a_damaged_folder(folder: Path, edit: Callable[[Path], None], message: str) -> None:
    edit(folder)
    with pytest.raises(CheckpointError, match=message):
        subbyte.import_checkpoint(folder, Net())


def test_another_model(tmp_path: Path, folder: Path) -> None:
    def refused(model: nn.Module, message: str, error: type[Exception] = CheckpointError) -> None:
        with pytest.raises(error, match=message):
            subbyte.import_checkpoint(folder, model)

    refused(Net(64), "op '(first|second)'")
    refused(nn.Sequential(nn.Linear(32, 32)), "op 'first': this model has no such module")
    convolutional = Net()
    convolutional.first = nn.Conv1d(32, 32, 1)
    refused(convolutional, "op 'first': in this model it is a Conv1d, and the format holds Linear and Conv1D")
    refused(quantized(), "quantized already", ModelError)
    with torch.device("meta"):
        empty = Net()
    refused(empty, "on the meta device")
    refused(Net().half(), "is torch.float32, and torch.float16 would round it; build the model in torch.float32")
    with pytest.raises(CheckpointError, match="there is no checkpoint folder at"):
        subbyte.import_checkpoint(tmp_path / "missing", Net())


def test_a_note_that_does_not_fit(tmp_path: Path) -> None:
    """What Subbyte notes of its specs is held against the tensors: another tool may have changed them."""
    model = quantized()
    subbyte.export_checkpoint(model, tmp_path / "model", format="compressed-tensors")
    path = tmp_path / "model" / "model.safetensors"
    stored, metadata = safe_file.open_tensors(path)
    for old, new, message in (
        (
            "per_group(16)",
            "per_group(8)",
            r"op '.*': it is said to be .*, and has per_group\(16\); the file",
        ),
        ('"dtype": "int4"', '"dtype": "int3"', "4 bits, codes beyond its range"),
        ("fp16", "bf16", "scales in torch.float16"),
        ("minmax", "", "cannot be read"),
        ('"dtypes"', '"types"', "what it notes of its weights cannot be read"),
    ):
        changed = metadata["subbyte_specs"].replace(old, new) if new else "["
        save_file(stored, path, {"format": "pt", "subbyte_specs": changed})
        with pytest.raises(CheckpointError, match=message):
            subbyte.import_checkpoint(tmp_path / "model", Net())
