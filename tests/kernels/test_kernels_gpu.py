"""The kernels in Triton: they compile for GPUs, nothing imports Triton before it is needed, and nothing needs it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from float_linear_oracle import layer, weight_of

from subbyte.errors import KernelError
from subbyte.kernels import float_linear, gpu, used_isa

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from subbyte.kernels.gpu import binary, linear

def assembly(kernel, pointers, constants, **options):
    kinds = {name: "*" + pointers[name] if name in pointers else "i32" for name in kernel.arg_names}
    source = ASTSource(kernel, kinds | dict.fromkeys(constants, "constexpr"), constants)
    return triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options).asm["ptx"]

floats = dict.fromkeys(("scale", "zero_point", "values", "bias"), "fp32")
kinds = {"has_zeros": True, "has_bias": True}
for dtype, bits in (("bf16", 3), ("fp16", 8), ("fp32", 1)):
    pointers = {**floats, "x": dtype, "y": dtype, "words": "i32"}
    tiles = {"step": 2, "tile_rows": 16, "tile_outputs": 64}
    many = assembly(linear._many_rows, pointers, {"bits": bits, **kinds, **tiles}, enable_fp_fusion=True)
    assert ("mma" in many) == (dtype != "fp32"), "tensor cores multiply what is narrower than fp32"
    assembly(linear._one_row, pointers, {"bits": bits, **kinds, "step": 8}, enable_fp_fusion=True)

pointers = {"x": "fp32", "scale": "fp32", "zero_point": "i32", "bits": "i32"}
constants = {"planes": 2, "rounds": True, "tile": 16}
assert "div.rn.f32" in assembly(binary._thresholds, pointers, constants, enable_fp_fusion=False)
pointers |= {"signs": "i32", "weight_sums": "i32", "weight_ones": "i32"}
pointers |= {"weight_scale": "fp32", "bias": "fp32", "y": "fp32"}
for rows, outputs, words in ((1, 16, 32), (32, 64, 1)):
    tile = {"tile_rows": rows, "tile_outputs": outputs, "tile_words": words}
    constants = {"planes": 2, "has_masks": True, "has_bias": True, **tile}
    products = assembly(binary._products, pointers, constants, enable_fp_fusion=False)
    assert "popc.b32" in products and "fma" not in products
"""


def python(code: str, **environment: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env={**os.environ, **environment})


def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    # Without what `make sanitize` loads first, and without the library that needs it: ptxas is a program of its own.
    python(COMPILE, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path), LD_PRELOAD="", SUBBYTE_ISA="torch")


def test_importing_the_library_does_not_import_triton() -> None:
    python("import sys, subbyte; assert 'triton' not in sys.modules")


def test_cuda_tensors_have_an_implementation_of_their_own() -> None:
    for name in ("linear_float", "binary_linear"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"subbyte::{name}", "CUDA")


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(gpu, "has_triton", gpu.has_triton.__wrapped__)


def called(implementation: Callable[..., Any]) -> torch.Tensor:
    case = layer()
    weight = weight_of(case)
    parts = (case["x"], weight.packed, weight.scale, weight.zero_point, weight.values, torch.empty(0))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    y: torch.Tensor = implementation(*(part.to(device) for part in parts), 4, 20, 33, 8)
    return y


@pytest.mark.usefixtures("without_triton")
def test_without_triton_pytorch_serves() -> None:
    on_gpu = gpu.by_triton("linear", "linear_float", float_linear._linear_float)
    assert torch.equal(called(on_gpu), called(float_linear._linear_float))
    assert gpu.used_on(torch.device("cuda")) == "torch"


def test_with_triton_its_kernel_serves() -> None:
    def refuse(*arguments: object) -> None:
        raise KernelError("not this one")

    on_gpu = gpu.by_triton("linear", "linear_float", refuse)
    assert called(on_gpu).shape == (3, 20)
    assert gpu.used_on(torch.device("cuda")) == "triton"
    assert gpu.used_on(torch.device("cpu")) == used_isa()
