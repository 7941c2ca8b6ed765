"""The doctor: where a quantized model loses accuracy, through what, and what may help."""

from subbyte.report.doctor.compare import compare
from subbyte.report.doctor.comparison import Comparison
from subbyte.report.doctor.figures import OpComparison, QuantizerFigures, Remedy

__all__ = ["Comparison", "OpComparison", "QuantizerFigures", "Remedy", "compare"]
