"""`subbyte demo`: the whole main job on real images, in seconds."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from safetensors.torch import save_file
from torch import nn

from subbyte.cli.console import note, out, say
from subbyte.cli.digits import DigitNet, Digits, load_digits, trained_network
from subbyte.errors import CheckpointError
from subbyte.export.checkpoint import load, save
from subbyte.quantization import quantize, weights

SEED = 0
SAVED = "w4a4"
_PRECISIONS = ("w8a8", SAVED, "w2a2", "wbint1a8:mean_abs")
_EDGES = "int8"  # of the first and last layer
_CALIBRATION_IMAGES = 512


@dataclass(frozen=True)
class _Result:
    """What one precision came to: accuracy (0 to 1), bytes of the checkpoint's file, bytes of the weights' codes."""

    name: str
    accuracy: float
    file_bytes: int
    code_bytes: int


def run_demo(output: Path) -> None:
    """Train, quantize at several precisions, print accuracy and size, save a checkpoint and load it back.

    Raises:
        SubbyteError: scikit-learn is missing, or the checkpoint cannot be written.
    """
    if not output.parent.is_dir():
        raise CheckpointError(f"cannot write {output}: there is no folder {output.parent}; create it first")
    train, test = load_digits(SEED)
    note(f"training a small convolutional network on {len(train.images)} digits")
    model = trained_network(train, SEED)
    calibration = train.images[:_CALIBRATION_IMAGES].split(128)
    results = [_float_result(model, test)]
    for precision in _PRECISIONS:
        note(f"quantizing as {precision}, first and last layer {_EDGES}")
        quantized = quantize(model, precision, calibration, first_last=_EDGES)
        results.append(_result(precision, quantized, test))
        if precision == SAVED:
            save(quantized, output)
            kept = quantized
    out().print(_table(results))
    _check_loaded(output, kept, test)


def _float_result(model: nn.Module, test: Digits) -> _Result:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.safetensors"
        save_file(model.state_dict(), path)
        code_bytes = sum(
            module.weight.nbytes for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)
        )
        return _Result("fp32", test.accuracy(model), path.stat().st_size, code_bytes)


def _result(name: str, quantized: nn.Module, test: Digits) -> _Result:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.safetensors"
        save(quantized, path)
        code_bytes = sum(tensor.packed.nbytes for tensor in weights(quantized).values())
        return _Result(name, test.accuracy(quantized), path.stat().st_size, code_bytes)


def _table(results: list[_Result]) -> Table:
    whole = results[0]
    table = Table(title=f"digits: {_TITLE}")
    for heading in ("precision", "test accuracy", "change", "checkpoint", "smaller", "weight codes", "smaller"):
        table.add_column(heading, justify="left" if heading == "precision" else "right")
    for result in results:
        change = f"{100 * (result.accuracy - whole.accuracy):+.1f}" if result is not whole else "-"
        table.add_row(
            result.name, f"{result.accuracy:.1%}", change,
            f"{result.file_bytes:,} B", f"{whole.file_bytes / result.file_bytes:.1f}x",
            f"{result.code_bytes:,} B", f"{whole.code_bytes / result.code_bytes:.1f}x",
        )  # fmt: skip
    return table


_TITLE = f"first and last layer {_EDGES}, no retraining"


def _check_loaded(path: Path, quantized: nn.Module, test: Digits) -> None:
    loaded = load(path, DigitNet())
    with torch.no_grad():
        equal = torch.equal(loaded(test.images), quantized(test.images))
    if not equal:
        raise CheckpointError(f"{path}: the loaded model's outputs differ from those of the model that was saved")
    say(
        f"saved {SAVED} to {path} ({path.stat().st_size:,} bytes), loaded it into a fresh network: "
        f"the outputs on {len(test.images)} test images are equal, bit for bit"
    )
