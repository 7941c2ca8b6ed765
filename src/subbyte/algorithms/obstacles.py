"""What several methods cannot work on."""

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.adaptor.pytorch.recurrent import Projection


def hidden_input(op: WeightedOp) -> str:
    """Why what an op is given cannot be seen; empty where it can."""
    return "it is a matrix of a recurrent module, whose steps are not seen" if isinstance(op.module, Projection) else ""


def fixed_codes(op: WeightedOp) -> str:
    """Why the codes of an op cannot be chosen by what it is given; empty where they can."""
    if not op.handler.takes_activation:
        return "its rows are looked up, so that the nearest codes are best"
    if op.shares_weight_with:
        return f"its weight is that of {op.shares_weight_with[0]!r} too, whose values would change with it"
    return hidden_input(op)
