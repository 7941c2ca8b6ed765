"""Whether the sums of an op fit the accumulator that a capability gives it."""

from torch import nn

from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted, WeightedModule
from subbyte.adaptor.pytorch.weight import magnitude
from subbyte.errors import ConfigError
from subbyte.numerics import scheme_of
from subbyte.spec import ACCUMULATORS


def largest_sum(module: WeightedModule) -> int | None:
    """A bound of |sum of products| of one output, of whatever input; None where it sums no whole numbers.

    `max |qx - zx| * max over channels of sum |qw - zw|`, of a per_group weight over the groups.
    """
    quantizers, spec = list(module.input_quantizers), module.weight_spec
    if not quantizers or not scheme_of(spec).has_integer_grid(spec):
        return None
    if not all(quantizer.has_integer_grid for quantizer in quantizers):
        return None
    if isinstance(module, ConvertedWeighted):
        largest = module.weight.magnitude
    else:
        largest = magnitude(module.operand().grid, spec, module.handler)
    return int(largest * max(quantizer.max_grid for quantizer in quantizers))


def overflows(module: WeightedModule) -> str:
    """What could go wrong in an op's accumulator; empty where nothing can, or it has no limit."""
    limit, largest = module.op_config.accumulator, largest_sum(module)
    if limit is None or largest is None or largest <= ACCUMULATORS[limit]:
        return ""
    return f"sums up to {largest:,} may overflow {limit}"


def check_accumulators(model: nn.Module) -> None:
    """Refuse a prepared model of which an op could overflow.

    Raises:
        ConfigError: naming the op and the bound.
    """
    for module in model.modules():
        problem = overflows(module) if isinstance(module, WeightedModule) else ""
        if problem:
            raise ConfigError(
                f"op {module.op_name!r}: {problem}, and the capability is strict; give the op fewer bits, or leave "
                "strict out to have it reported only"
            )
