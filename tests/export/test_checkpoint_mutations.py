"""A checkpoint of which one thing was changed, behind a valid checksum: refused, or the same model to the last bit."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte import CheckpointError
from subbyte.capability import load_capability
from subbyte.dtypes import registered_dtypes
from subbyte.export import safe_file
from subbyte.export.checkpoint import read_report

Tensors = dict[str, Tensor]
Path_ = tuple[Any, ...]
EVERY = 13
Mutation = tuple[str, Callable[[Tensors, dict[str, Any]], None]]


class Language(nn.Module):
    """A table, a recurrent layer, matrix products and other functions of the model's own code."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        y, _ = self.recurrent(x)
        scores = torch.softmax(y @ x.mT, -1)
        return self.out(self.norm(scores @ x + y))


def plain() -> nn.Module:
    return randomized(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 6, bias=False)))


IMAGES, TOKENS, ROWS = seeded((4, 3, 8, 8)), torch.arange(12).view(2, 6) % 10, seeded((4, 8))
ASYM = {"precision": "w4:g4", "op_type_dict": {"Linear": {"weight": {"dtype": "uint4", "scheme": "asym"}}}}
HALF = {"precision": "w4", "op_name_dict": {"2": "bf16"}}
HALVES = "extends: pytorch_cpu\nversion: {name: halves}\ncapabilities: {bf16: ['*']}\n"
NARROW = subbyte.DataType("int4_narrow_mutated", bits=4, signed=True, narrow=True)
CASES: dict[str, tuple[Callable[[], nn.Module], Any, Tensor, bool]] = {
    "affine": (lambda: randomized(ResidualNet()), "w4a8", IMAGES, True),
    "groups": (plain, ASYM, ROWS, False),
    "codebook": (plain, "wternarya8", ROWS, True),
    "binary": (lambda: randomized(ResidualNet()), "w1a1", IMAGES, True),
    "recurrent": (lambda: randomized(Language()), "w4a8:dynamic", TOKENS, True),
    "later": (lambda: randomized(Language()), "w4a8:dynamic", TOKENS, False),
    "half": (plain, HALF, ROWS, True),
    "narrow": (plain, "wint4_narrow_mutateda8", ROWS, True),
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[nn.Module, Tensors, dict[str, Any], Tensor]]:
    """For each case the float model, what its checkpoint holds, and the output of the loaded model."""
    subbyte.register_dtype(NARROW)
    file = tmp_path_factory.mktemp("capability") / "halves.yaml"
    file.write_text(HALVES)
    capability, made = load_capability(file), {}
    for name, (build, config, x, with_data) in CASES.items():
        path = tmp_path_factory.mktemp(name) / "model.safetensors"
        subbyte.save(subbyte.quantize(build(), config, x if with_data else None, capability=capability), path)
        tensors, header = safe_file.read(path)
        with torch.no_grad():
            made[name] = (build(), tensors, header, subbyte.load(path, build())(x))
    return made


@pytest.mark.parametrize("name", CASES)
def test_every_mutation_is_refused_or_changes_nothing(
    cases: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_file, "replaced", nullcontext)  # no wait for the disk
    model, tensors, header, expected = cases[name]
    values = {key: value.clone() for key, value in model.state_dict().items()}
    before, wrong, count = registered_dtypes(), [], 0
    # Each case tries another part of all mutations, so that together they try every kind at every field.
    for what, mutate in itertools.islice(_mutations(tensors, header), [*CASES].index(name), None, EVERY):
        changed, text = dict(tensors), copy.deepcopy(header)
        mutate(changed, text)
        # A mutation may give one tensor two names, which safetensors does not write.
        safe_file.write(tmp_path / "changed", {name: tensor.clone() for name, tensor in changed.items()}, text)
        count += 1
        try:
            loaded = subbyte.load(tmp_path / "changed", model)
            read_report(tmp_path / "changed")
            with torch.no_grad():
                if not torch.equal(loaded(CASES[name][2]), expected):
                    wrong.append(f"{what}: another output")
        except CheckpointError as error:
            if len(str(error)) > 2_000:
                wrong.append(f"{what}: a message of {len(str(error))} characters")
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}"[:300])
        if registered_dtypes() != before:
            wrong.append(f"{what}: registered data types")
            before = registered_dtypes()
    assert count > 100
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)
    assert all(torch.equal(value, values[key]) for key, value in model.state_dict().items())


def _mutations(tensors: Tensors, header: dict[str, Any]) -> Iterator[Mutation]:
    for place in _places(header):
        yield from _header_mutations(place, _value(header, place))
    for name, tensor in tensors.items():
        yield from _tensor_mutations(name, tensor)


# Maps and lists whose entries are data: a file with one entry fewer may be a right one of another model.
_ENTRIES = {"found_later", "versions", "moved_by", "sources", "weight_sqnr", "activation_sqnr", "report", "order"}


def _places(value: Any, place: Path_ = ()) -> Iterator[Path_]:
    """Every place in a header; of long lists, and of values that are shown and nothing else, the first three."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    few = place[:1] in (("fingerprint",), ("report",), ("sources",), ("tensors",)) or isinstance(value, list)
    for key, item in itertools.islice(entries, 3 if few else None):
        yield (*place, key)
        yield from _places(item, (*place, key))


def _value(header: Any, place: Path_) -> Any:
    for key in place:
        header = header[key]
    return header


def _deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def _header_mutations(place: Path_, value: Any) -> Iterator[Mutation]:
    where = "header " + ".".join(map(str, place))

    def put(new: Any) -> Callable[[Tensors, dict[str, Any]], None]:
        def mutate(_: Tensors, header: dict[str, Any]) -> None:
            _value(header, place[:-1])[place[-1]] = new

        return mutate

    def remove(_: Tensors, header: dict[str, Any]) -> None:
        del _value(header, place[:-1])[place[-1]]

    if len(place) == 1 or place[0] not in _ENTRIES:
        yield f"{where} removed", remove
    others = [True, 1.5, "other", [], {}, ["other"], {"other": 1}, _deep(100), math.inf]
    if place[0] != "found_later":  # where it makes a right file of a model with fewer quantized functions
        others.append(None)
    if isinstance(value, str):
        others += ["", "x" * 200_000, "\0\x1b[31m", 7]
    if isinstance(value, int) and not isinstance(value, bool):
        others += [-1, 2**63, 10**400, str(value)]
    for other in others:
        if type(other) is not type(value) or not _is_data(place, value):
            yield f"{where} = {str(other)[:40]!r}", put(other)


def _is_data(place: Path_, value: Any) -> bool:
    """Whether another value of the same type at this place makes a right file of another model."""
    return place[0] in _ENTRIES or place[:1] == ("aliases",) or not isinstance(value, str | int)


def _tensor_mutations(name: str, tensor: Tensor) -> Iterator[Mutation]:
    def put(new: Tensor) -> Callable[[Tensors, dict[str, Any]], None]:
        return lambda tensors, _: tensors.update({name: new})

    yield f"tensor {name} removed", lambda tensors, _: tensors.pop(name)
    yield f"tensor {name} under another name", lambda tensors, _: tensors.update({f"{name}_": tensors.pop(name)})
    yield f"tensor {name} twice", lambda tensors, _: tensors.update({f"{name}_": tensor})
    dtypes = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float64, torch.float16, torch.complex64)
    for dtype in dtypes:
        if dtype != tensor.dtype:
            yield f"tensor {name} as {dtype}", put(tensor.to(dtype))
    shapes = {"flat": tensor.reshape(-1), "one axis more": tensor[None], "doubled": torch.cat([tensor.reshape(-1)] * 2)}
    shapes["one value"], shapes["empty"] = tensor.reshape(-1)[:1], tensor.new_empty(0)
    for shape, new in shapes.items():
        if new.shape != tensor.shape:
            yield f"tensor {name} {shape}", put(new)
    if tensor.is_floating_point():
        for value in (math.nan, math.inf, -math.inf):
            yield f"tensor {name} = {value}", put(torch.full_like(tensor, value))
    if name.endswith("scale"):
        for factor in (0, -1):
            yield f"tensor {name} * {factor}", put(tensor * factor)
    if name.endswith("zero_point"):
        for value in (-(2**31), -129, 256, 2**31 - 1):
            yield f"tensor {name} = {value}", put(torch.full_like(tensor, value))
    if name.endswith(("quant_min", "quant_max")):
        yield f"tensor {name} + 1", put(tensor + 1)
