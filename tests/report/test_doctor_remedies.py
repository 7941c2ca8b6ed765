"""Each rule of the table: figures that call for a remedy, and near ones that do not."""

from dataclasses import replace
from typing import Any

import pytest

from subbyte.report.doctor import OpComparison, QuantizerFigures
from subbyte.report.doctor.remedies import remedies

INPUT = QuantizerFigures(
    where="input", dtype="uint8", spec="uint8 sym per_tensor minmax", bits=8, granularity="per_tensor", is_static=True,
    scale=(0.1, 0.1), range=(0.0, 25.5), data=(0.0, 25.0), range_used=0.98, bulk_used=0.9, saturation=0.0,
    codes_used=0.9, outliers=2.0,
)  # fmt: skip
WEIGHT = replace(INPUT, where="weight", dtype="int8", sqnr=35.0, rounded_sqnr=35.5)


def op(weight: dict[str, Any] | None, inputs: dict[str, Any] | None, **changed: Any) -> OpComparison:
    """An op of good figures but for those given; None leaves a quantizer out."""
    quantizers = [replace(each, **fields) for each, fields in ((WEIGHT, weight), (INPUT, inputs)) if fields is not None]
    figures = {
        "name": "conv", "type": "Conv2d", "sqnr": 10.0, "weight_error": None if weight is None else 0.04,
        "input_error": None if inputs is None else 0.01, "mean_shift": 0.0, "reads_columns": weight is not None,
    }  # fmt: skip
    return OpComparison(**(figures | {"quantizers": tuple(quantizers)} | changed))


def first(*args: Any, **changed: Any) -> tuple[str, ...]:
    return next(remedies(op(*args, **changed))).methods


FEW = {"bits": 4, "dtype": "int4"}
BY_INPUT = {"weight_error": 0.01, "input_error": 0.04}


def test_where_no_figure_stands_out_a_wider_type_is_what_is_left() -> None:
    assert first({}, {}) == ("a wider type",)


def test_values_that_are_not_finite() -> None:
    assert first(FEW, {}, not_finite=(0, 3)) == ("fp32",)
    assert first({}, {}, not_finite=(3, 3)) == ("a wider type",)  # the float model has them too


def test_weights_of_few_bits() -> None:
    assert "reconstruct" in first(FEW, {})
    assert "reconstruct" not in first(FEW, {}, **BY_INPUT)
    assert first(FEW, None, type="Linear")[:2] == ("gptq", "awq")


def test_inputs_of_few_bits() -> None:
    assert first({}, FEW, **BY_INPUT) == ("reconstruct", "a wider type")
    assert first({}, FEW) == ("a wider type",)
    assert first(None, FEW) == ("a wider type",)  # nothing to reconstruct


def test_a_weight_that_a_method_moved_is_still_the_models() -> None:
    assert first({"sqnr": 12.0}, {})[0] == "quantize again"
    assert first({"sqnr": 12.0, "noted_sqnr": 12.0}, {})[0] != "quantize again"
    assert first({"sqnr": -2.0, "noted_sqnr": 12.0}, {})[0] == "quantize again"


def test_methods_that_refuse_an_op_are_not_proposed() -> None:
    for kind in ("Embedding", "LSTM"):
        (remedy,) = remedies(op(FEW, None, type=kind, mean_shift=0.9, reads_columns=False))
        assert remedy.methods == ("hqq", "a wider type")
    assert first(None, {"range_used": 0.25}, type="add") == ("calibrate again",)
    assert first(None, {"saturation": 0.02}, type="add") == ("minmax",)
    assert first(None, {"bulk_used": 0.01}, type="add")[0] == "a wider type"
    assert first({}, {"bulk_used": 0.01}, **BY_INPUT)[0] == "clip"


def test_a_range_far_above_the_data() -> None:
    assert first({}, {"range_used": 0.25}, **BY_INPUT)[0] == "calibrate again"
    assert first({"range_used": 0.25}, {})[0] == "calibrate again"
    assert first({}, {"range_used": 0.25}) == ("a wider type",)  # the weight's error is larger
    assert first({}, {"range_used": 0.25, "is_static": False}, **BY_INPUT) == ("a wider type",)


def test_a_range_below_the_data() -> None:
    assert "clip" in first({}, {"saturation": 0.05}, **BY_INPUT)
    assert first({"saturation": 0.05}, {}) == ("minmax",)
    assert "minmax" not in first({"saturation": 0.05, "bits": 2}, {})  # ternary weights clip by choice
    assert "minmax" not in first({}, {"saturation": 0.02, "bits": 2}, **BY_INPUT)  # as `mse` does
    assert "minmax" in first({}, {"saturation": 0.02, "bits": 3}, **BY_INPUT)


def test_a_few_large_inputs() -> None:
    assert first({}, {"bulk_used": 0.2}, **BY_INPUT) == ("clip", "percentile", "kl")
    assert first({}, {"bulk_used": 0.6}, **BY_INPUT) == ("a wider type",)
    assert first({}, {"bulk_used": None, "range_used": None}, **BY_INPUT) == ("a wider type",)


def test_large_channels_of_a_linear_layers_input() -> None:
    figures = {"outliers": 50.0, "bulk_used": 0.1}
    assert first({}, figures, type="Linear", **BY_INPUT) == ("smoothquant", "rotate")
    assert first({}, figures, **BY_INPUT) == ("clip", "percentile", "kl")


def test_channels_of_a_weight_that_share_a_scale() -> None:
    assert first({"outliers": 100.0}, {}) == ("per_channel", "equalize")
    assert first({"outliers": 100.0, "granularity": "per_channel"}, {}) == ("a wider type",)


def test_a_weight_that_is_no_longer_the_float_models() -> None:
    assert first({"sqnr": 10.0}, {}) == ("quantize again",)
    assert first({"sqnr": 33.0}, {}) == ("a wider type",)  # rounded otherwise, as GPTQ does


def test_a_shift_of_means() -> None:
    assert first({}, {}, mean_shift=0.5) == ("bias_correction",)
    assert first({}, {}, mean_shift=0.5, has_norm=True) == ("bias_correction", "batch_norm")
    assert first(None, {}, mean_shift=0.5) == ("a wider type",)  # a function has no bias
    assert [remedy.methods[0] for remedy in remedies(op(FEW, {}, mean_shift=0.5))] == ["reconstruct", "bias_correction"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_remedies_read_as_a_sentence(count: int) -> None:
    figures = {1: {}, 2: {"outliers": 100.0}, 3: FEW}[count]
    text = str(next(remedies(op(figures, {}))))
    assert text.startswith({1: "a wider type: ", 2: "per_channel or equalize: ", 3: "reconstruct, gptq, "}[count])


def test_a_weight_that_explains_too_little_of_its_error_has_another_bias() -> None:
    figures = op({"sqnr": 41.0}, {}, weight_error=0.32, has_norm=True)
    (remedy,) = remedies(figures)
    assert remedy.methods == ("quantize again",)
    assert remedy.because.endswith("its bias or BatchNorm is not the float model's")
    assert first({"sqnr": 29.0}, {}, weight_error=0.32) == ("a wider type",)
    assert first({"sqnr": 41.0}, {}, weight_error=0.32, reads_columns=False) == ("a wider type",)
