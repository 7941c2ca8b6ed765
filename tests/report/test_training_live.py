"""What a training says while it runs, and the table at its end."""

import io

import torch.nn.functional as F
from rich.console import Console
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte.report.training.live import TrainingLine, epoch_line, shown_live
from subbyte.report.training.table import conclusion, outcome_table
from subbyte.training import Epoch, Progress, TrainingResult

EPOCHS = (Epoch(1, 0.5, 0.1, 0, 0.91234, 3.0),)


def test_the_line() -> None:
    times = iter([10.0, 12.0, 20.0])
    line = TrainingLine(lambda: next(times))
    assert line.of(Progress(1, 4, 1, 400, 2.34567, ())) == "epoch 1 of 4, step 1 of 400; loss 2.346"
    assert line.of(Progress(1, 4, 2, 400, 2.0, ())).endswith("; loss 2; about 13 min left")  # 2 s a step
    said = line.of(Progress(2, 4, 101, 400, 1.0, EPOCHS))
    assert said == "epoch 2 of 4, step 101 of 400; loss 1; metric 0.9123 after epoch 1; about 30 s left"


def test_a_terminal_is_shown_it_and_a_file_is_not() -> None:
    for is_terminal in (True, False):
        shown = io.StringIO()
        with shown_live(Console(file=shown, force_terminal=is_terminal, width=100)) as watch:
            watch(Progress(1, 4, 1, 400, 2.0, ()))
        assert ("epoch 1 of 4" in shown.getvalue()) is is_terminal


def test_each_epoch_that_ends_leaves_a_line() -> None:
    line = "epoch 2 of 4: loss 0.25, learning rate 0.01, metric 0.95, 12 s\n"
    for is_terminal in (True, False):
        shown = io.StringIO()
        with shown_live(Console(file=shown, force_terminal=is_terminal, width=40)) as watch:
            watch(Progress(2, 4, 101, 400, 0.3, EPOCHS))  # taken up: the first was said before
            watch(Progress(2, 4, 200, 400, 0.25, (*EPOCHS, Epoch(2, 0.25, 0.01, 0, 0.95, 12.0))))
            watch(Progress(3, 4, 201, 400, 0.2, (*EPOCHS, Epoch(2, 0.25, 0.01, 0, 0.95, 12.0))))
        assert shown.getvalue().count(line) == 1
        assert "epoch 1 of 4: loss" not in shown.getvalue()
        assert (shown.getvalue() == line) is not is_terminal
    assert epoch_line(Epoch(1, 2.5, 0.1, 0, None, 3.0), 4) == "epoch 1 of 4: loss 2.5, learning rate 0.1, 3.0 s"


def test_the_table() -> None:
    x = seeded((8, 4))
    model = subbyte.prepare_qat(randomized(nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 4))), "w4a4", x)
    subbyte.train(model, [(x, x)], F.mse_loss, epochs=1)
    summary = subbyte.summary(subbyte.convert(model))
    shown = io.StringIO()
    Console(file=shown, width=100).print(outcome_table(summary, 0.75, TrainingResult(model, EPOCHS, None)))
    cells = [line.split("│")[1:-1] for line in shown.getvalue().splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in cells] == [
        ["fp32", "0.75", f"{summary.totals['float_bytes']:,}"],
        ["quantized", "-", f"{summary.totals['bytes']:,}"],
    ]
    assert conclusion(TrainingResult(model, EPOCHS, None)) == "1 epoch in 3.0 s, loss 0.5 in the last"
