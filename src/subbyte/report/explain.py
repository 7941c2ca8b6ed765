"""Why an op is what it is."""

from torch import nn

from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.errors import ConfigError, nearest
from subbyte.report.rows import rows_of


def explain(model: nn.Module, name: str) -> str:
    """What an op got, which rule set each field, and the ranges that calibration found.

    Raises:
        ConfigError: the model has no such op.
        ModelError: the model is not quantized.
    """
    state = state_of(model)
    rows = {row["name"]: row for row in rows_of(model)}
    if not isinstance(name, str) or name not in rows:
        raise ConfigError(f"the model has no op {name!r}{nearest(name, rows)}; summary(model) lists them")
    row = rows[name]
    key = (name, row["type"])
    lines = [f"{name} ({row['type']}): {row['realized']}"]
    if row["requested"] != row["realized"]:
        lines.append(f"  requested: {row['requested']}")
    lines += [f"  {field}: {source}" for field, source in sorted(state.config.sources.get(key, {}).items())]
    lines.append(f"  kernel: {row['kernel']}")
    for quantizer_key in state.input_keys.get(name, []):
        quantizer = state.quantizers[quantizer_key]
        if isinstance(quantizer, ActivationQuantizer) and quantizer.calibrated and quantizer.scale.numel() == 1:
            lines.append(f"  input: scale {float(quantizer.scale):.6g}, zero point {int(quantizer.zero_point)}")
    for field in ("weight_sqnr", "activation_sqnr"):
        if row[field] is not None:
            lines.append(f"  {field.replace('_', ' ')}: {row[field]:.1f} dB")
    return "\n".join(lines)
