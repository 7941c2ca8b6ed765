"""What finished units have changed, on disk, so that an interrupted run can go on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.adaptor.pytorch.prepared.new_values import give_values
from subbyte.algorithms.method import RecoveryMethod
from subbyte.algorithms.registry import as_methods
from subbyte.errors import CheckpointError, RecoveryError

_RUN, _CHOSEN, _UNIT = "run.json", "methods.json", "unit"


@dataclass(frozen=True)
class UnitStore:
    """A folder with one safetensors file for each finished unit, of exactly one run.

    Args:
        folder: exists, and holds the units of this run only.
    """

    folder: Path

    @classmethod
    def of(cls, folder: Path, model: PreparedModel, methods: Sequence[RecoveryMethod], seed: int) -> "UnitStore":
        """The store of a run.

        Raises:
            CheckpointError: the folder belongs to another run, or cannot be written.
        """
        run = {"methods": [str(method) for method in methods], "seed": seed, "start": _digest(model)}
        known = folder / _RUN
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not known.exists():
                _write(known, json.dumps(run, indent=1).encode())
            before = json.loads(known.read_text("utf8"))
            if not isinstance(before, dict):
                raise ValueError(f"{known.name} is not what was written there")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"resume: {folder} cannot be used: {error}") from error
        differing = [key for key in run if before.get(key) != run[key]]
        if differing:
            raise CheckpointError(
                f"resume: {folder} holds units of another run (other {', '.join(differing)}; start is the model, its "
                "configuration and the data); name another folder, or remove this one"
            )
        return cls(folder)

    def chosen(self) -> list[RecoveryMethod] | None:
        """The methods that `keep_chosen` was given; None where it has not been called.

        Raises:
            CheckpointError: they cannot be read.
        """
        path = self.folder / _CHOSEN
        if not path.exists():
            return None
        try:
            return as_methods(json.loads(path.read_text("utf8")))
        except (OSError, ValueError, RecoveryError) as error:
            raise CheckpointError(f"resume: {path} is damaged ({error}); remove the folder to begin anew") from error

    def keep_chosen(self, methods: Sequence[RecoveryMethod]) -> None:
        """Write down which methods run.

        Raises:
            CheckpointError: the folder cannot be written.
        """
        try:
            named = [{method.name: method.model_dump(mode="json")} for method in methods]
            _write(self.folder / _CHOSEN, json.dumps(named, indent=1).encode())
        except OSError as error:
            raise CheckpointError(f"resume: {self.folder} cannot be written: {error}") from error

    def versions(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """What tells whether a tensor of the model has been changed."""
        return {name: (tensor.data_ptr(), tensor._version) for name, tensor in _tensors(model).items()}

    def keep(self, unit: str, model: nn.Module, before: dict[str, tuple[int, int]]) -> None:
        """Write what has changed since `before`.

        Raises:
            CheckpointError: the folder cannot be written.
        """
        now = self.versions(model)
        tensors = _tensors(model)
        changed = {name: tensors[name].clone().contiguous() for name in now if before.get(name) != now[name]}
        try:
            _write(self._path(unit), save(changed or {"": torch.empty(0)}, {_UNIT: unit}))
        except OSError as error:
            raise CheckpointError(f"resume: {self.folder} cannot be written: {error}") from error

    def restore(self, unit: str, model: nn.Module) -> bool:
        """Put back what a unit changed; False where it was not finished.

        Raises:
            CheckpointError: its file is damaged.
        """
        path = self._path(unit)
        if not path.exists():
            return False
        try:
            with safe_open(path, "pt") as file:
                changed = {name: file.get_tensor(name) for name in file.keys() if name}  # noqa: SIM118 (not a dict)
                of = (file.metadata() or {}).get(_UNIT)
        except (SafetensorError, OSError) as error:
            raise _damaged(path, str(error)) from error
        known = _tensors(model)
        if of != unit:
            raise _damaged(path, f"it is of unit {of!r}, not {unit!r}")
        for name, tensor in changed.items():
            if not _fits(name, tensor, known):
                raise _damaged(path, f"{name!r} of shape {tuple(tensor.shape)} is no tensor of this model")
        for name, tensor in changed.items():
            owner, _, key = name.rpartition(".")
            module = model.get_submodule(owner)
            if module._parameters.get(key) is not None:
                _put_back(module, key, tensor, together=_holds_one(_names_of(model, module._parameters[key]), changed))
            elif key in module._buffers:
                module._buffers[key] = tensor
            else:
                module.register_parameter(key, nn.Parameter(tensor))
        return True

    def _path(self, unit: str) -> Path:
        return self.folder / f"{hashlib.sha256(unit.encode()).hexdigest()[:16]}.safetensors"


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"resume: {path} is damaged ({why}); remove it to compute that unit again")


def _fits(name: str, tensor: Tensor, known: Mapping[str, Tensor]) -> bool:
    """Whether a model with these tensors may have got this one: a bias can be new, and scales take any shape."""
    key = name.rpartition(".")[2]
    if name not in known:
        return key == "bias" and f"{name.removesuffix('bias')}weight" in known
    return tensor.shape == known[name].shape or key in ("scale", "zero_point")


def _put_back(module: nn.Module, key: str, tensor: Tensor, *, together: bool) -> None:
    """Give a parameter other values: in place where all modules that hold it had these, else as one of its own."""
    own = module._parameters[key]
    assert own is not None
    if together:
        give_values(own, tensor)
    else:
        module._parameters[key] = nn.Parameter(tensor, own.requires_grad)


def _names_of(model: nn.Module, parameter: Tensor | None) -> list[str]:
    named = model.named_parameters(remove_duplicate=False)
    return [name for name, one in named if one is parameter]


def _holds_one(names: Sequence[str], changed: Mapping[str, Tensor]) -> bool:
    """Whether all of these were changed, and to the same values."""
    return all(name in changed and torch.equal(changed[name], changed[names[0]]) for name in names)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}


def _digest(model: PreparedModel) -> str:
    """Of all tensors, the configuration and the data."""
    digest = hashlib.sha256(str(sorted(model.state.config.to_dict()["op"].items())).encode())
    tensors = [*_tensors(model.model).values()]
    for batch in model.batches:
        tensors += [leaf for leaf in tree_leaves((batch.args, dict(batch.kwargs))) if isinstance(leaf, Tensor)]
    for tensor in tensors:
        digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _write(path: Path, content: bytes) -> None:
    """The file appears whole or not at all."""
    temporary = path.with_suffix(".part")
    temporary.write_bytes(content)
    temporary.replace(path)
