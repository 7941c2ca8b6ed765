"""Rules of training that no quantizer is trained by."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, cast

from torch import nn

from subbyte.adaptor.pytorch.attach import weighted_parts
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.dtypes import dtype
from subbyte.errors import ConfigError, UnusedRuleWarning
from subbyte.training.rules import OpRules, Slot, TrainingRules, names_op

_NAMES = {"weight": "weights", "activation": "activations"}
Types = dict[str, set[str]]  # the data types of each op


def check_rules_used(model: nn.Module, rules: TrainingRules) -> None:
    """Tell of rules that match no quantizer of a model that was just prepared.

    A later configuration of the same model (`requantize`, stages) may bring what they wait for, so that most are worth
    a warning. A type that differs from that of the slot in its sign alone, as int4 from uint4, is a slip.

    Raises:
        ConfigError: a rule is such a slip; the message names it, and the types that there are.
    """
    found: Mapping[str, Types] = {slot: _types(model, cast(Slot, slot)) for slot in _NAMES}
    unused = []
    for key, slot, wanted in _unmatched(rules, found):
        names = sorted(set().union(*found[slot].values())) if not key.startswith("ops") else []
        where = f"{_NAMES[slot]} of such ops" if key.startswith("ops") else _NAMES[slot]
        what = f"training: {key} matches nothing: {where} are {' and '.join(names) or 'float'}"
        if wanted and any(_differ_in_sign(wanted, name) for name in names):
            raise ConfigError(what)
        unused.append(what)
    if unused:
        warnings.warn(
            f"{'; '.join(unused)}; take out what no later configuration of this model waits for",
            UnusedRuleWarning,
            stacklevel=3,
        )


def _unmatched(rules: TrainingRules, found: Mapping[str, Types]) -> Iterator[tuple[str, str, str]]:
    """Each rule that matches nothing: its key, its slot, and the type that it is for, if it is for one."""
    for slot, of_ops in found.items():
        if getattr(rules, slot) is not None and not of_ops:
            yield slot, slot, ""
        for name in _having(rules.types, slot):
            if not any(name in types for types in of_ops.values()):
                yield f"types: {name}: {slot}", slot, name
        for pattern in _having(rules.ops, slot):
            if not any(names_op(pattern, op) for op in of_ops):
                yield f"ops: {pattern!r}: {slot}", slot, ""


def _having(rules: Mapping[str, OpRules], slot: str) -> list[str]:
    return [key for key, each in rules.items() if getattr(each, slot) is not None]


def _types(model: nn.Module, slot: Slot) -> Types:
    """Those of the weights or the inputs of each op that has any quantized."""
    state = state_of(model)
    quantizers: dict[str, list[Any]] = {}
    if slot == "weight":
        for op in (op for op in state.graph if op.kind == "module"):
            parts = weighted_parts(model.get_submodule(op.name))
            quantizers[op.name] = [part.weight_quantizer for part in parts if isinstance(part, PreparedWeighted)]
    else:
        for op_name, keys in state.input_keys.items():
            quantizers[op_name] = [state.quantizers[key] for key in keys]
    return {name: {cast(Quantizer, each).spec.dtype.name for each in own} for name, own in quantizers.items() if own}


def _differ_in_sign(name: str, other: str) -> bool:
    one, two = dtype(name), dtype(other)
    return one.kind == two.kind == "integer" and one.bits == two.bits and one.signed != two.signed
