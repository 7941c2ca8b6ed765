"""`subbyte capability`: what a file comes to, and what of a model it covers."""

import warnings
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn

from subbyte.adaptor.pytorch.adaptor import PyTorchAdaptor
from subbyte.adaptor.pytorch.modules import FloatHandler, handler_of
from subbyte.adaptor.pytorch.trace import NORMS
from subbyte.capability import Capability, Constraint, broken_promises, derived_ranges, load_capability
from subbyte.cli.console import out, say
from subbyte.cli.dtype_table import values_of
from subbyte.cli.reference import importing_from, load_data, load_model
from subbyte.dtypes import dtype
from subbyte.errors import ConfigError, UnimplementedOpWarning

_SHORT = 4  # values of a codebook that are all shown in a list of types


def check_capability(file: str, model: str | None, data: str | None) -> None:
    """Print every derived range, and which ops of a model are covered.

    Raises:
        CapabilityError: the file is wrong, with the line.
        ConfigError: the model or the data cannot be loaded.
    """
    if data is not None and model is None:
        raise ConfigError("--data is for --model; give both")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnimplementedOpWarning)  # shown below, one a line
        capability = load_capability(file)
    problems = broken_promises(capability)
    coverage = None if model is None else _coverage(capability, model, data)
    out().print(_ranges(capability))
    if coverage is not None:
        out().print(coverage)
    if model is not None and data is None:
        say("modules only; functional ops such as add and matmul are found with --data")
    for problem in problems:
        say(f"warning: {problem}")
    verdict = "correct" if not problems else f"readable, with {len(problems)} entries that Subbyte cannot honour"
    say(f"{file}: {verdict}; precisions {', '.join(capability.sections)}; default {capability.default}")


def show_capability(file: str) -> None:
    """Print precisions, float types, data types, fusions and constraints.

    Raises:
        CapabilityError: the file is wrong, with the line.
    """
    capability = load_capability(file)
    say(f"{capability.name} (default precision: {capability.default})")
    table = Table("precision", "mode", "op types", title="precisions")
    for section, modes in capability.sections.items():
        for mode, ops in modes.items():
            table.add_row(section, mode, ", ".join(ops))
    out().print(table)
    lines = [f"stays in {name}: {_any(ops)}" for name, ops in capability.floats.items()]
    lines += [f"data type {name}: {values_of(data_type)}" for name, data_type in capability.dtypes.items()]
    lines += [f"runs as one op: {' + '.join(ops)}" for ops in capability.fusions]
    lines += [f"constraint: {_where(constraint)}: {constraint.precision}" for constraint in capability.constraints]
    say("\n".join(lines))


def _any(ops: tuple[str, ...]) -> str:
    return "any op type" if "*" in ops else ", ".join(ops)


def _where(constraint: Constraint) -> str:
    parts = {"position": constraint.position, "op": constraint.op, "name": constraint.name}
    said = [f"{key} {' or '.join(names)}" for key, names in parts.items() if names]
    if constraint.depthwise is not None:
        said.append("depthwise" if constraint.depthwise else "not depthwise")
    return ", ".join(said) or "every op"


def _ranges(capability: Capability) -> RenderableType:
    """One row for each precision, mode and tensor; op types with the same ranges share it."""
    ranges: dict[tuple[str, str, str, str], list[str]] = {}
    for row in derived_ranges(capability):
        op = (row["section"], row["mode"], row["tensor"], row["op_type"])
        ranges.setdefault(op, []).append(f"{row['dtype']} {_range(row)}")
    shared: dict[tuple[str, str, str, str], list[str]] = {}
    for (section, mode, tensor, op_type), texts in ranges.items():
        shared.setdefault((section, mode, tensor, "; ".join(texts)), []).append(op_type)
    table = Table(title="ranges (the first of a list is its default)", show_lines=True)
    for heading in ("precision", "mode", "tensor", "data types", "op types"):
        table.add_column(heading, overflow="fold")
    for (section, mode, tensor, text), op_types in shared.items():
        table.add_row(section, mode, tensor, text, ", ".join(op_types))
    return table


def _range(row: dict[str, Any]) -> str:
    """Short enough to stand beside others: of a long table, its ends."""
    values = row["values"]
    if values is None or len(values) <= _SHORT:
        return values_of(dtype(row["dtype"]))
    return f"{min(values):.4g}..{max(values):.4g} ({len(values)} values)"


def _coverage(capability: Capability, reference: str, data: str | None) -> Table:
    folder = Path()
    with importing_from(folder):
        model = load_model(reference, folder, "--model")
        batches = None if data is None else load_data(data, folder, "--data")
        ops = PyTorchAdaptor(capability).operators(model, batches)
    table = Table("op", "type", "covered", "precisions", title=f"ops of {reference}")
    broken = {promise.op_type for promise in broken_promises(capability) if promise.refused}
    float_only = _without_quantized_form(model)
    for op in (op for op in ops if op.name not in float_only):
        modes = capability.modes(op.type)
        sections = dict.fromkeys(section for mode in modes for section in capability.entries(op.type, mode))
        if op.type in broken:
            table.add_row(Text(op.name), op.type, "no", "error: Subbyte cannot honour its entry (see the warning)")
        elif sections:
            table.add_row(Text(op.name), op.type, ", ".join(modes), ", ".join(sections))
        else:
            reason = f"{capability.name} does not list {op.type}"
            table.add_row(Text(op.name), op.type, "no", _left_float(capability, op.type, reason))
    for name, module in float_only.items():
        kind = type(module).__name__
        table.add_row(Text(name), kind, "no", _left_float(capability, kind, "Subbyte has no quantized form of it"))
    return table


def _left_float(capability: Capability, op_type: str, reason: str) -> str:
    """What becomes of an op in no precision."""
    if capability.allows_float(op_type, "fp32") or capability.unsupported == "float":
        return f"stays float: {reason}"
    return f"error: {reason}, and fp32 is not listed for it"


def _without_quantized_form(model: nn.Module) -> dict[str, nn.Module]:
    """Modules with parameters of their own that are not quantized, by name; norms are folded."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(handler_of(module), FloatHandler | None)
        and not isinstance(module, NORMS)
        and any(True for _ in module.parameters(recurse=False))
    }
