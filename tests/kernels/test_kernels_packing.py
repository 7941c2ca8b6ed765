"""pack_codes, unpack_codes and sign_pack: every instruction set against plain Python, and what they refuse."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from subbyte.errors import KernelError
from subbyte.kernels import isas, use_isa
from subbyte.kernels import packing as in_torch

OPS = torch.ops.subbyte
AVAILABLE = [isa.name for isa in isas() if isa.available]
IN_TORCH = {name: getattr(in_torch, f"_{name}") for name in ("pack_codes", "unpack_codes", "sign_pack")}


def stream(codes: list[int], bits: int) -> list[int]:
    """Code i in bits [i*b, (i+1)*b), low bits first, as one long integer."""
    whole = sum((code & ((1 << bits) - 1)) << (i * bits) for i, code in enumerate(codes))
    return list(whole.to_bytes((len(codes) * bits + 7) // 8, "little"))


anything = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@anything
@given(bits=st.integers(1, 8), codes=st.lists(st.integers(0, 255), max_size=300))
def test_codes_are_cut_to_their_width_and_laid_end_to_end(kernels: str, bits: int, codes: list[int]) -> None:
    given_codes = torch.tensor(codes, dtype=torch.uint8)
    packed = OPS.pack_codes(given_codes, bits)
    assert packed.tolist() == stream(codes, bits)
    assert torch.equal(OPS.pack_codes(given_codes.view(torch.int8), bits), packed)
    assert torch.equal(OPS.unpack_codes(packed, bits, len(codes), False), given_codes & ((1 << bits) - 1))


@anything
@given(bits=st.integers(1, 8), data=st.binary(max_size=300), missing=st.integers(0, 70))
def test_any_bytes_are_codes(kernels: str, bits: int, data: bytes, missing: int) -> None:
    count = max(len(data) * 8 // bits - missing, 0)
    packed = torch.tensor(list(data), dtype=torch.uint8)
    whole = int.from_bytes(data, "little")
    want = [whole >> (i * bits) & ((1 << bits) - 1) for i in range(count)]
    assert OPS.unpack_codes(packed, bits, count, False).tolist() == want
    signed = [code - (1 << bits) if code >> (bits - 1) else code for code in want]
    assert OPS.unpack_codes(packed, bits, count, True).tolist() == signed


@pytest.mark.parametrize("bits", range(1, 9))
def test_threads_share_long_streams_without_a_trace(kernels: str, bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (1_000_003,), dtype=torch.uint8)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        packed = OPS.pack_codes(codes, bits)
        torch.set_num_threads(2)
        assert torch.equal(OPS.pack_codes(codes, bits), packed)
        assert torch.equal(OPS.unpack_codes(packed, bits, len(codes), False), codes)
    finally:
        torch.set_num_threads(threads)


def test_other_layouts_are_read_row_by_row(kernels: str) -> None:
    codes = torch.randint(0, 16, (6, 10), dtype=torch.uint8)
    assert torch.equal(OPS.pack_codes(codes.T, 4), OPS.pack_codes(codes.T.contiguous(), 4))
    packed = OPS.pack_codes(codes, 4)
    apart = packed.repeat_interleave(2)[::2]
    assert torch.equal(OPS.unpack_codes(apart, 4, 60, False), codes.flatten())


@anything
@given(st.lists(st.floats(width=32) | st.sampled_from([0.0, -0.0, float("nan"), -1e-45]), max_size=70))
def test_the_sign_of_zero_is_plus_one_and_of_nan_minus_one(kernels: str, values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    assert OPS.sign_pack(x).tolist() == stream([int(value >= 0) for value in x.tolist()], 1)


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    codes = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=r"1\.\.8 bits, not 9"):
        OPS.pack_codes(codes, 9)
    with pytest.raises(RuntimeError, match=r"1\.\.8 bits, not 0"):
        OPS.unpack_codes(codes, 0, 1, False)
    with pytest.raises(RuntimeError, match="codes must be uint8 or int8"):
        OPS.pack_codes(codes.float(), 4)
    with pytest.raises(RuntimeError, match="7 codes of 4 bits do not fit in 3 bytes"):
        OPS.unpack_codes(codes, 4, 7, False)
    with pytest.raises(RuntimeError, match="count of codes is -1"):
        OPS.unpack_codes(codes, 4, -1, False)
    with pytest.raises(RuntimeError, match="fit"):
        OPS.unpack_codes(codes, 4, 1 << 62, False)
    with pytest.raises(RuntimeError, match="one axis of uint8"):
        OPS.unpack_codes(codes.view(1, 3), 4, 2, False)
    with pytest.raises(RuntimeError, match="float32"):
        OPS.sign_pack(codes)


def test_they_are_well_behaved_operators() -> None:
    codes = torch.randint(0, 8, (37,), dtype=torch.uint8)
    torch.library.opcheck(OPS.pack_codes.default, (codes, 3))
    torch.library.opcheck(OPS.unpack_codes.default, (OPS.pack_codes(codes, 3), 3, 37, True))
    torch.library.opcheck(OPS.sign_pack.default, (torch.randn(5, 3),))


def test_they_compile_and_export() -> None:
    def through(codes: torch.Tensor) -> torch.Tensor:
        return OPS.unpack_codes(OPS.pack_codes(codes, 3), 3, codes.numel(), False)

    codes = torch.randint(0, 8, (37,), dtype=torch.uint8)
    assert torch.equal(torch.compile(through, fullgraph=True, backend="aot_eager")(codes), codes)


def test_torch_works_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = torch.randint(0, 8, (1003,), dtype=torch.uint8)
    whole = in_torch._pack_codes(codes, 3)
    monkeypatch.setattr(in_torch, "_CHUNK", 64)
    assert torch.equal(in_torch._pack_codes(codes, 3), whole)
    assert torch.equal(in_torch._unpack_codes(whole, 3, 1003, False), codes)


def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    with pytest.raises(KernelError, match="there are no kernels for 'mmx'" if AVAILABLE else "without"):
        use_isa("mmx")


def test_a_family_whose_feature_is_missing_is_a_narrower_one() -> None:
    if "avx512" not in AVAILABLE:
        return
    widest = next(isa for isa in isas() if isa.name == "avx512").families
    for feature, family in {"avx512_vbmi": "packing", "avx512_vnni": "linear", "avx512_vpopcntdq": "binary"}.items():
        if widest[family] != "avx512":
            continue
        try:
            use_isa(f"avx512-{feature}")
            assert next(isa for isa in isas() if isa.used).families == {**widest, family: "avx2"}
        finally:
            use_isa("")
