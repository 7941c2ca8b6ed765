"""Meeting a float model and a quantized one op by op: what each op's output lost, and through what."""

from subbyte.adaptor.pytorch.comparison.meeting import Meeting, meet
from subbyte.adaptor.pytorch.comparison.op_error import OpError, WeightChannels
from subbyte.adaptor.pytorch.comparison.quantizer_use import QuantizerUse

__all__ = ["Meeting", "OpError", "QuantizerUse", "WeightChannels", "meet"]
