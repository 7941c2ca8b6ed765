"""AWQ is read as AutoAWQ's gemm kernels read it; the files are made here, by its own layout."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from weight_only import llama, logits

import subbyte
from subbyte import CheckpointError

GROUP = 32


def words(codes: Tensor) -> Tensor:
    """Eight 4-bit codes of a row in one int32: the channel of nibble i is 0, 2, 4, 6, 1, 3, 5, 7."""
    out = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for nibble, channel in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        out |= codes[:, channel::8].long() << (4 * nibble)
    return torch.where(out >= 2**31, out - 2**32, out).to(torch.int32)


def make(folder: Path, model: nn.Module, **settings: Any) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """An AWQ checkpoint of random codes for all of a model's blocks; returns codes, zero points and scales by op."""
    generator = torch.Generator().manual_seed(1)
    stored, made = {}, {}
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 2 and ".layers." in name:
            outputs, inputs = tensor.shape
            codes = torch.randint(0, 16, (inputs, outputs), generator=generator)
            zeros = torch.randint(0, 16, (inputs // GROUP, outputs), generator=generator)
            scales = (torch.rand(inputs // GROUP, outputs, generator=generator) / 16 + 0.01).half()
            op = name.removesuffix(".weight")
            stored |= {f"{op}.qweight": words(codes), f"{op}.qzeros": words(zeros), f"{op}.scales": scales}
            made[op] = (codes, zeros, scales)
        else:
            stored[name] = tensor
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    folder.mkdir()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"quantization_config": config | settings}))
    return made


def test_values_and_codes(tmp_path: Path) -> None:
    model = llama()
    made = make(tmp_path / "awq", model)
    read = subbyte.import_checkpoint(tmp_path / "awq", llama())
    with torch.no_grad():
        for op, (codes, zeros, scales) in made.items():
            weight = subbyte.weights(read)[op]
            assert str(weight.spec.with_axis(0, 1)) == "uint4 asym per_group(32) minmax scale_format=fp16 axis=1"
            assert torch.equal(weight.codes, codes.t().to(torch.uint8))
            assert torch.equal(weight.zero_point, zeros.t().int())
            assert torch.equal(weight.scale, scales.t())
            group = torch.arange(len(codes)) // GROUP
            model.get_submodule(op).weight.copy_(((codes - zeros[group]) * scales.float()[group]).t())
    assert torch.equal(logits(read), logits(model))


def test_it_goes_on_as_any_other(tmp_path: Path) -> None:
    make(tmp_path / "awq", llama())
    read = subbyte.import_checkpoint(tmp_path / "awq", llama())
    subbyte.export_checkpoint(read, tmp_path / "gptq", format="gptq_v2")
    assert torch.equal(logits(subbyte.import_checkpoint(tmp_path / "gptq", llama())), logits(read))
    subbyte.save(read, tmp_path / "model.safetensors")
    assert torch.equal(logits(subbyte.load(tmp_path / "model.safetensors", llama())), logits(read))


def test_the_file_of_older_tools(tmp_path: Path) -> None:
    make(tmp_path / "awq", llama())
    expected = logits(subbyte.import_checkpoint(tmp_path / "awq", llama()))
    (tmp_path / "awq" / "config.json").write_text("{}")
    old = {"zero_point": True, "q_group_size": GROUP, "w_bit": 4, "version": "GEMM"}
    (tmp_path / "awq" / "quant_config.json").write_text(json.dumps(old))
    assert torch.equal(logits(subbyte.import_checkpoint(tmp_path / "awq", llama())), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"version": "gemv"}, "AWQ 'gemv' of 4 bits; 'gemm' of 4 bits is read"),
        ({"bits": 3}, "AWQ 'gemm' of 3 bits"),
        ({"group_size": 64}, r"op '.*_proj': its scales are of \(.., .\) channels and groups, where groups of 64"),
    ],
)
def test_what_is_not_read(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    make(tmp_path / "awq", llama(), **settings)
    with pytest.raises(CheckpointError, match=message):
        subbyte.import_checkpoint(tmp_path / "awq", llama())
