"""The layout shows the architecture: imports run downwards only."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "subbyte"
# From the bottom up; `errors` stands below all, the public modules above.
LAYERS = ["errors", "dtypes", "spec", "kernels", "numerics", "calibration", "capability", "config", "adaptor",
          "algorithms", "training", "tuning", "report", "export", "quantization", "cli"]  # fmt: skip


def _layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("subbyte."):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("subbyte.")}
    return names


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_run_downwards(path: Path) -> None:
    if path == SOURCE / "__init__.py":
        return
    own = LAYERS.index(_layer(path))
    for name in _imported(path):
        assert LAYERS.index(name) <= own, f"{path.name} in {_layer(path)} imports {name}, which stands above it"


def test_every_file_is_one_room() -> None:
    long = {path.name: count for path in SOURCE.rglob("*.py") if (count := len(path.read_text().splitlines())) > 500}
    assert not long


@pytest.mark.parametrize("name", ["torch.ao.quantization", "torch.quint", "torch.qint"])
def test_nothing_that_pytorch_is_removing(name: str) -> None:
    assert not [path.name for path in SOURCE.rglob("*.py") if name in path.read_text()]
