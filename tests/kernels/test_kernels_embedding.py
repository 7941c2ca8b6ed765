"""embedding_codes: rows of a packed table against the formula, and what it refuses."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.kernels import embedding as in_torch
from subbyte.kernels.embedding import embedding_codes
from subbyte.kernels.packing import pack_codes

IN_TORCH = {"embedding_codes": in_torch._embedding_codes}


def case(
    count: int = 4,
    rows: int = 7,
    columns: int = 13,
    bits: int = 3,
    group_size: int = 5,
    kind: str = "unsigned",
    by_row: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of one call, drawn at random; kind: `signed`, `unsigned` or `table`."""
    random = torch.Generator().manual_seed(seed)
    low = -(1 << (bits - 1)) if kind == "signed" else 0
    shape = (rows if by_row else 1, -(-columns // group_size))
    return {
        "index": torch.randint(0, rows, (count,), generator=random),
        "codes": torch.randint(low, low + (1 << bits), (rows, columns), generator=random, dtype=torch.int16),
        "scale": torch.rand(shape, generator=random) + 0.1,
        "zero_point": torch.empty(0, dtype=torch.int32)
        if kind == "table"
        else torch.randint(low, low + (1 << bits), shape, generator=random, dtype=torch.int32),
        "values": torch.randn(1 << bits, generator=random) if kind == "table" else torch.empty(0),
        "bits": bits,
        "signed": kind == "signed",
        "group_size": group_size,
    }


def run(given_case: dict[str, Any], **changes: Any) -> Tensor:
    codes, bits = given_case["codes"], given_case["bits"]
    arguments = {
        "index": given_case["index"],
        "packed": pack_codes((codes & 0xFF).to(torch.uint8), bits),
        "scale": given_case["scale"],
        "zero_point": given_case["zero_point"],
        "values": given_case["values"],
        "bits": bits,
        "signed": given_case["signed"],
        "rows": codes.shape[0],
        "columns": codes.shape[1],
        "group_size": given_case["group_size"],
    }
    return embedding_codes(**{**arguments, **changes})


def expected(given_case: dict[str, Any]) -> Tensor:
    rows, columns = given_case["codes"].shape
    y = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            group, of = column // given_case["group_size"], row if len(given_case["scale"]) > 1 else 0
            code = int(given_case["codes"][row, column])
            number = torch.tensor(float(code)) if not len(given_case["values"]) else given_case["values"][code]
            if len(given_case["zero_point"]):
                number = number - given_case["zero_point"][of, group]
            y[row, column] = number * given_case["scale"][of, group]
    return y[given_case["index"]]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 9),
    rows=st.integers(1, 6),
    columns=st.integers(1, 20),
    bits=st.integers(1, 8),
    group_size=st.integers(1, 25),
    kind=st.sampled_from(["signed", "unsigned", "table"]),
    by_row=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_the_formula_bit_for_bit(kernels: str, kind: str, by_row: bool, **sizes: int) -> None:
    drawn = case(kind=kind, by_row=by_row, **sizes)
    assert torch.equal(run(drawn), expected(drawn))


@pytest.mark.parametrize("index", [-1, 7, 1 << 40])
def test_an_index_out_of_range_is_refused(kernels: str, index: int) -> None:
    with pytest.raises(RuntimeError, match="out of range"):
        run(case(), index=torch.tensor([0, index]))


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    drawn = case()
    changes: list[dict[str, Any]] = [
        {"index": torch.tensor([0.0])},
        {"index": torch.tensor([[0]])},
        {"packed": torch.zeros(3, dtype=torch.uint8)},
        {"scale": torch.rand(2, 3)},
        {"scale": torch.rand(7, 3).double()},
        {"scale": torch.full((7, 3), torch.nan)},
        {"zero_point": torch.zeros(4, dtype=torch.int32)},
        {"values": torch.rand(7)},
        {"values": torch.rand(8), "signed": True, "zero_point": torch.empty(0, dtype=torch.int32)},
        {"bits": 0},
        {"bits": 9},
        {"rows": -1},
        {"rows": 1 << 50},
        {"columns": 0},
        {"group_size": 0},
        {"group_size": (1 << 63) - 1, "scale": torch.rand(0)},
    ]
    for change in changes:
        with pytest.raises(RuntimeError):
            run(drawn, **change)


@pytest.mark.parametrize("by_row", [True, False])
def test_embedding_codes_refuses_values_with_zero_points(kernels: str, by_row: bool) -> None:
    drawn = case(kind="table", by_row=by_row)
    zero_points = torch.ones(drawn["scale"].shape, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=rf"no zero points, got {zero_points.numel()};"):
        run(drawn, zero_point=zero_points)


def test_it_is_a_well_behaved_operator() -> None:
    drawn = case()
    packed = pack_codes(drawn["codes"].to(torch.uint8), 3)
    parts = (drawn["index"], packed, drawn["scale"], drawn["zero_point"], drawn["values"])
    torch.library.opcheck(torch.ops.subbyte.embedding_codes.default, (*parts, 3, False, 7, 13, 5))
