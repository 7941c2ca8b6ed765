"""What a training was: its epochs and its outcome."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Epoch:
    """One pass over the data.

    Args:
        number: counted from 1.
        loss: the mean over its steps.
        learning_rate: of the last step, of the first parameter group.
        stage: how many of the plan's stages had begun.
        metric: of the model then; None without an evaluation.
        seconds: that it took, evaluation included.
    """

    number: int
    loss: float
    learning_rate: float
    stage: int
    metric: float | None
    seconds: float


@dataclass(frozen=True)
class TrainingResult:
    """The outcome of a training.

    Args:
        model: that was trained, in eval().
        history: its epochs, those before an interruption included.
        metric: of the model as it is returned; None without an evaluation.
    """

    model: nn.Module
    history: tuple[Epoch, ...]
    metric: float | None


@dataclass(frozen=True)
class Progress:
    """Where a training is, for whoever shows it.

    Args:
        epoch, epochs: the epoch, counted from 1, of how many.
        step, steps: steps done, of how many in the whole training.
        loss: the mean over the steps of the epoch so far.
        history: epochs that are done.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    history: tuple[Epoch, ...]
