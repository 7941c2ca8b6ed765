"""The scripts under examples/ do what they say, in fewer steps than by themselves."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_digits_qat(capsys: pytest.CaptureFixture[str]) -> None:
    results = runpy.run_path(str(EXAMPLES / "digits_qat.py"))["run"](epochs=2)
    accuracies = {name: accuracy for name, (accuracy, _) in results.items()}
    assert min(accuracies.values()) > 70, accuracies
    body, ends = 3 * 32 * 32 * 9, 32 * 9 + 32 * 10
    assert results["fp32"][1] == 4 * (body + ends)
    for bits in (4, 2, 1):
        assert results[f"w{bits}a{bits}"][1] == body * bits // 8 + ends
    table = capsys.readouterr().out
    assert "w1a1" in table
    assert "signs of w1a1 changed" in table
