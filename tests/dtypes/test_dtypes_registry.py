"""The built-in types, and registering one's own."""

import pytest

from subbyte.dtypes import DataType, dtype, register_dtype, registered_dtypes, registry
from subbyte.errors import DataTypeError

# QLoRA (Dettmers et al., 2023), appendix E.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


@pytest.mark.parametrize("bits", range(1, 9))
def test_all_widths_are_built_in(bits: int) -> None:
    assert (dtype(f"int{bits}").bits, dtype(f"int{bits}").signed) == (bits, True)
    assert (dtype(f"uint{bits}").bits, dtype(f"uint{bits}").signed) == (bits, False)
    assert not dtype(f"int{bits}").narrow


def test_int4_is_minus_8_to_7() -> None:
    assert (dtype("int4").qmin, dtype("int4").qmax) == (-8, 7)


def test_bint1_stores_minus_one_as_bit_0() -> None:
    assert (dtype("bint1").values, dtype("bint1").bits) == ((-1.0, 1.0), 1)
    assert dtype("bint1").algorithm == "mean_abs"


def test_ternary() -> None:
    assert sorted(dtype("ternary").values) == [-1.0, 0.0, 1.0]
    assert (dtype("ternary").bits, dtype("ternary").algorithm) == (2, "twn")


def test_nf4_has_the_published_values() -> None:
    assert dtype("nf4").values == pytest.approx(NF4, abs=1e-6)
    assert dtype("nf4").bits == 4
    assert dtype("nf4").values[7] == 0.0


def test_fp4_e2m1_codes_are_sign_exponent_mantissa() -> None:
    for code, value in enumerate(dtype("fp4_e2m1").values):
        sign, exponent, mantissa = code >> 3, (code >> 1) & 3, code & 1
        magnitude = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
        assert value == (-magnitude if sign else magnitude)
    assert dtype("fp4_e2m1").bits == 4


@pytest.mark.parametrize(("name", "bits"), [("fp32", 32), ("bf16", 16), ("fp16", 16)])
def test_float_passes(name: str, bits: int) -> None:
    assert dtype(name).is_float
    assert dtype(name).bits == bits


def test_a_registered_type_is_known_by_name() -> None:
    mine = register_dtype(DataType("apot3", values=(-1, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1)))
    assert dtype("apot3") is mine
    assert dtype(mine) is mine
    assert registered_dtypes()["apot3"] is mine


def test_registering_an_equal_type_again_changes_nothing() -> None:
    first = register_dtype(DataType("mine", bits=3, signed=True))
    assert register_dtype(DataType("mine", bits=3, signed=True)) is first


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(DataTypeError, match=r"data type 'int4': the name is taken by .*'bits': 4"):
        register_dtype(DataType("int4", bits=4, signed=True, narrow=True))
    assert not dtype("int4").narrow


def test_a_type_whose_name_stands_for_another_is_refused() -> None:
    with pytest.raises(DataTypeError, match=r"data type 'int4': the name is taken by .*'bits': 4"):
        dtype(DataType("int4", bits=4, signed=True, narrow=True))
    mine = DataType("unheard_of", bits=3, signed=True)
    assert dtype(mine) is mine


def test_an_unknown_name_says_the_nearest_and_all() -> None:
    with pytest.raises(DataTypeError, match=r"unknown data type 'itn4'; did you mean 'int4'\? \(known: bf16, "):
        dtype("itn4")


@pytest.mark.parametrize("name", [None, ["int4"], 4])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(DataTypeError, match="unknown data type"):
        dtype(name)


def test_only_a_data_type_can_be_registered() -> None:
    with pytest.raises(DataTypeError, match="takes a DataType, not dict"):
        register_dtype({"bits": 3, "signed": True})


def test_what_is_returned_cannot_change_the_registry() -> None:
    registered_dtypes().clear()
    assert dtype("int4").bits == 4
