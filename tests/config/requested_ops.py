"""Ops of a small network, and what a request comes to for them."""

from collections.abc import Mapping
from typing import Any

from subbyte.capability import Capability, load_capability
from subbyte.config import resolve
from subbyte.spec import OpConfig, OpInfo, TuneConfig

CPU = load_capability()
FIRST, LAST = frozenset({"first"}), frozenset({"last"})
CONV1 = OpInfo("conv1", "Conv2d", "weighted", FIRST, product_positions=FIRST)  # type: ignore[arg-type]
CONV2 = OpInfo("layer1.0.conv1", "Conv2d", "weighted")
DEPTHWISE = OpInfo("layer1.0.conv2", "Conv2d", "weighted", depthwise=True)
ADD = OpInfo("layer1.0.add", "add", "other", consumers=frozenset({CONV2.name}))
MATMUL = OpInfo("attention.matmul", "matmul", "matmul")
EMBEDDING = OpInfo("embed", "Embedding", "weighted")
FC = OpInfo("fc", "Linear", "weighted", LAST, product_positions=LAST)  # type: ignore[arg-type]
OPS = [CONV1, CONV2, DEPTHWISE, ADD, MATMUL, EMBEDDING, FC]


def tuned(config: Any, first_last: str | None = None, capability: Capability = CPU) -> TuneConfig:
    return resolve(capability, OPS, config, first_last)


def types(config: OpConfig) -> tuple[str, str]:
    """The weight's and the activation's type, '-' where there is none."""
    return tuple(spec.dtype.name if spec else "-" for spec in (config.weight, config.activation))  # type: ignore[return-value]


def all_types(tune: TuneConfig) -> dict[str, tuple[str, str]]:
    return {name: types(config) for (name, _), config in tune.op.items()}


def overlay(sections: Mapping[str, Any], **more: Any) -> Capability:
    return load_capability({"extends": "pytorch_cpu", "capabilities": sections, **more})
