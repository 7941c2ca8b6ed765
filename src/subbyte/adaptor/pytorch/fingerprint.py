"""What tells one model's structure from another's."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

from torch import Tensor, nn

from subbyte.errors import shortened

Fingerprint = dict[str, dict[str, str]]

_SHOWN, _LONGEST = 3, 500  # differences, and characters of each
# What is set by where a model comes from, or by training and reading it, and changes no result.
_VOLATILE = {
    "training", "gradient_checkpointing", "grad_checkpointing", "use_cache", "problem_type", "id2label", "label2id",
    "name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype",
}  # fmt: skip


def fingerprint(model: nn.Module) -> Fingerprint:
    """Settings of each part of a model: types, shapes, strides, numbers of heads, a Hugging Face config, ...

    Of a module these are its plain attributes (numbers, texts, tuples of them) and its `config`, if it is a
    dataclass or has a `to_dict`. Private attributes are left out, as are values of tensors.
    """
    parts: Fingerprint = {}
    configs: set[int] = set()  # every module of a Hugging Face model holds the same one
    for name, module in model.named_modules():
        part = parts[f"module {name!r}" if name else "the model itself"] = _module_settings(module)
        config = vars(module).get("config")
        if id(config) not in configs:
            configs.add(id(config))
            part.update(_config_settings("config", config))
            part.update(_attention(config))
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):  # an extra state is anything
            parts[f"tensor {name!r}"] = {"shape": str(tuple(tensor.shape)), "dtype": str(tensor.dtype)}
    return parts


def has_tensor(model: Fingerprint, name: str) -> bool:
    """Whether the model had a tensor of this name in its state_dict."""
    return f"tensor {name!r}" in model


def difference(before: Fingerprint, now: Fingerprint, where: str = "the checkpoint") -> str:
    """In what the models of two fingerprints differ, in words; empty where they do not.

    Args:
        before: as it was stored.
        now: of the model at hand.
        where: what the first was stored in.
    """
    found = list(_differences(before, now, where))
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(shortened(each, _LONGEST) for each in islice(found, _SHOWN)) + more


def _differences(before: Fingerprint, now: Fingerprint, where: str) -> Iterator[str]:
    for part in {**before, **now}:
        if part not in now:
            yield f"{part} is in {where} only"
        elif part not in before:
            yield f"{part} is in this model only"
        else:
            for key in {**before[part], **now[part]}:
                was, is_now = (settings.get(key, "not set") for settings in (before[part], now[part]))
                if was != is_now:
                    yield f"{key} of {part} is {was} in {where}, {is_now} in this model"


def _module_settings(module: nn.Module) -> dict[str, str]:
    settings = {"type": f"{type(module).__qualname__}({module.extra_repr()})"}
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        return settings  # its attributes are no settings: they are saved, and loaded
    attributes = vars(module).items()
    return settings | {key: repr(value) for key, value in attributes if _is_setting(key) and _is_plain(value)}


def _config_settings(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Each plain value in a configuration, by its path."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif callable(getattr(type(value), "to_dict", None)):
        value = value.to_dict()
    if isinstance(value, dict):
        for inner, item in value.items():
            if _is_setting(str(inner)):
                yield from _config_settings(f"{key}.{inner}", item)
    elif _is_plain(tuple(value) if isinstance(value, list) else value):
        yield key, repr(value)


def _attention(config: Any) -> dict[str, str]:
    """The code that attention runs, which Hugging Face's configurations leave out of `to_dict`."""
    chosen = getattr(config, "_attn_implementation", None)
    return {} if chosen is None else {"attn_implementation": str(chosen)}


def _is_setting(key: str) -> bool:
    return not key.startswith("_") and key not in _VOLATILE


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)
