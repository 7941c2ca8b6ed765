"""DataType: exact ranges, tables, and every description that is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from subbyte.dtypes import DataType, dtype
from subbyte.errors import DataTypeError


@pytest.mark.parametrize("bits", range(1, 9))
def test_integer_ranges_are_exact(bits: int) -> None:
    signed, unsigned = DataType("s", bits=bits, signed=True), DataType("u", bits=bits, signed=False)
    assert (signed.qmin, signed.qmax) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    assert (unsigned.qmin, unsigned.qmax) == (0, 2**bits - 1)
    assert signed.max_magnitude == 2 ** (bits - 1)
    assert unsigned.max_magnitude == 2**bits - 1
    assert signed.kind == unsigned.kind == "integer"
    assert signed.has_integer_values


@pytest.mark.parametrize("bits", range(2, 9))
def test_narrow_drops_the_lowest_value(bits: int) -> None:
    narrow = DataType("n", bits=bits, signed=True, narrow=True)
    assert (narrow.qmin, narrow.qmax) == (-(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1)


def test_a_table_gets_as_many_bits_as_it_needs() -> None:
    assert DataType("two", values=(-1, 1)).bits == 1
    assert DataType("three", values=(-1, 0, 1)).bits == 2
    assert DataType("nine", values=tuple(range(9))).bits == 4
    assert DataType("all", values=tuple(range(256))).bits == 8
    assert DataType("spare", bits=5, values=(-1, 0, 1)).bits == 5


def test_codes_of_a_table_are_its_indices() -> None:
    table = DataType("table", values=[0.5, -2, 1.25])
    assert (table.qmin, table.qmax, table.max_magnitude) == (0, 2, 2.0)
    assert table.values == (0.5, -2.0, 1.25)
    assert not table.has_integer_values
    assert DataType("whole", values=(-3, 0, 2)).has_integer_values


def test_both_zeros_may_stand_in_a_table() -> None:
    table = DataType("signed_zero", values=(0.0, 1.0, -0.0, -1.0))
    assert table.bits == 2


def test_floats_pass() -> None:
    assert DataType("fp16", bits=16).is_float
    assert not DataType("i", bits=8, signed=True).is_float


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"values": []}, "no values"),
        ({}, "no values"),
        ({"values": None}, "no values"),
        ({"signed": True}, "no values"),
        ({"values": [1.0, 1.0]}, r"twice in the table: \[1.0\]"),
        ({"values": [0.0, 1.0, 0.0]}, "twice in the table"),
        ({"values": [-0.0, 1.0, -0.0]}, "twice in the table"),
        ({"values": [1.0, 1.0 + 1e-12]}, "twice in the table"),
        ({"values": [0.0, 1.0, 1e-60]}, "twice in the table"),
        ({"values": [0.0]}, "at least two values"),
        ({"values": [0.0, -0.0]}, "one of them not zero"),
        ({"values": [1.0, math.inf]}, "finite"),
        ({"values": [1.0, math.nan]}, "finite"),
        ({"values": [1.0, 1e300]}, "finite, in fp32"),
        ({"values": [-1e-30, 0.0, 1e-30]}, r"largest magnitude is 1e-30.*divide the table by.*2\^-20 to 2\^20"),
        ({"values": [-1e20, 1.0]}, r"largest magnitude is 1e\+20"),
        ({"values": [1.0, 10**400]}, "must be numbers"),
        ({"values": [1.0, "x"]}, "must be numbers"),
        ({"values": "12"}, "list of numbers"),
        ({"values": 5}, "list of numbers"),
        ({"values": {1, 2}}, "list of numbers"),
        ({"values": torch.tensor(1.0)}, "list of numbers"),
        ({"values": [True, False]}, "must be numbers, and True is none"),
        ({"values": ["1", "2"]}, "must be numbers, and '1' is none"),
        ({"values": torch.ones(2, 2)}, "must be numbers"),
        ({"values": range(257)}, "257 values do not fit in 8 bits"),
        ({"values": [1.0] * 50_000}, "50,000 values do not fit in 8 bits; give at most 256"),
        ({"values": range(5), "bits": 2}, "5 values need 3 to 8 bits, not 2"),
        ({"values": range(5), "bits": 9}, "5 values need 3 to 8 bits, not 9"),
        ({"values": range(5), "bits": -1}, "not -1"),
        ({"values": [0, 1], "signed": True}, "describe integer types"),
        ({"values": [0, 1], "narrow": True}, "describe integer types"),
        ({"bits": 9, "signed": True}, r"bits must be 1\.\.8, not 9"),
        ({"bits": -3, "signed": False}, r"bits must be 1\.\.8, not -3"),
        ({"bits": "4", "signed": True}, "whole number"),
        ({"bits": True, "signed": True}, "whole number"),
        ({"bits": 4.0, "signed": True}, "whole number"),
        ({"bits": 4}, "needs signed"),
        ({"bits": 4, "signed": "yes"}, "needs signed"),
        ({"bits": 4, "signed": False, "narrow": True}, "narrow belongs to signed"),
        ({"bits": 1, "signed": True, "narrow": True}, "only the value 0"),
        ({"bits": 16, "narrow": True}, "narrow belongs to signed"),
        ({"bits": 16}, r"bits must be 1\.\.8, not 16; the float types are fp32, bf16, fp16"),
        ({"bits": 32}, r"bits must be 1\.\.8, not 32"),
        ({"bits": 4, "signed": True, "algorithm": 3}, "algorithm must be a name"),
    ],
)
def test_a_bad_type_is_refused_with_the_reason(fields: dict, reason: str) -> None:
    for build in (DataType.from_dict, lambda name, given: DataType(name, **given)):
        with pytest.raises(DataTypeError, match=f"data type 'bad': .*{reason}"):
            build("bad", fields)


@pytest.mark.parametrize("values", [torch.tensor([-1.0, 0.5]), np.array([-1, 0.5]), [np.float32(-1), 0.5]])
def test_arrays_serve_as_values(values: Any) -> None:
    table = DataType("table", values=values)
    assert table == DataType("table", values=(-1.0, 0.5))
    assert [type(value) for value in table.values or ()] == [float, float]


@pytest.mark.parametrize("name", ["", "4bit", "int 4", "int-4", None])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(DataTypeError, match="a name is letters, digits and underscores"):
        DataType(name, bits=4, signed=True)


def test_a_misspelt_key_names_the_nearest() -> None:
    with pytest.raises(DataTypeError, match=r"unknown key 'narow'; did you mean 'narrow'\? \(allowed: bits, "):
        DataType.from_dict("int3n", {"bits": 3, "signed": True, "narow": True})


def test_a_description_must_be_a_mapping() -> None:
    with pytest.raises(DataTypeError, match="expected"):
        DataType.from_dict("x", [1, 2])


@pytest.mark.parametrize(
    "fields",
    [
        {"bits": 3, "signed": True, "narrow": True},
        {"bits": 5, "signed": False},
        {"values": [-1, -0.25, 0, 0.25, 1], "algorithm": "mse"},
        {"values": [0.0, -0.0, 1.0], "bits": 4},
    ],
)
def test_round_trip_through_plain_values(fields: dict) -> None:
    original = DataType.from_dict("mine", fields)
    assert DataType.from_dict("mine", original.to_dict()) == original
    assert str(original) == "mine"


def test_round_trip_of_a_float_type() -> None:
    assert DataType.from_dict("bf16", dtype("bf16").to_dict()) == dtype("bf16")
