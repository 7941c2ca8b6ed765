"""What methods that work on a prepared model see of it: its weighted ops, its blocks, and what passes through them."""

from subbyte.adaptor.pytorch.prepared.blocks import find_blocks
from subbyte.adaptor.pytorch.prepared.capture import Call, paired
from subbyte.adaptor.pytorch.prepared.model import PreparedModel
from subbyte.adaptor.pytorch.prepared.weighted_op import WeightedOp

__all__ = ["Call", "PreparedModel", "WeightedOp", "find_blocks", "paired"]
