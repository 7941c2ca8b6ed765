"""The calibration method that suits a width, where a request names the width and no method."""

from subbyte.dtypes import DataType
from subbyte.spec import QuantMode

_CLOSEST = "mse"
_WIDTHS = {"activation": range(2, 8), "weight": range(2, 3)}  # benchmarks/calibration_by_width.py


def method_by_width(tensor: str, data_type: DataType, mode: QuantMode) -> str | None:
    """Return the calibration method that an integer type takes by its width.

    With few bits, a range that clips the largest values has a smaller squared error than the whole range.

    Args:
        tensor: `weight`, `activation` or `output`.
        data_type: what the tensor is quantized to.
        mode: of the op. Ranges of dynamic activations are computed at run time.

    Returns:
        The method, or None where the first choice of the capability or the data type's own method suits.
    """
    calibrated = mode == "static" or tensor == "weight"
    plain = data_type.kind == "integer" and data_type.algorithm == "minmax"
    return _CLOSEST if calibrated and plain and data_type.bits in _WIDTHS.get(tensor, ()) else None
