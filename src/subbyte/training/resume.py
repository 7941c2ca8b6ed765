"""The file in which a training is kept, epoch by epoch, to go on from bit by bit."""

from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from subbyte.errors import CheckpointError
from subbyte.training.best import Best
from subbyte.training.random_state import random_state, set_random_state
from subbyte.training.result import Epoch
from subbyte.training.run import TrainingRun


class TrainingFile:
    """Keeps a training: the model, the optimizer, what is random, and the epochs so far.

    Args:
        path: of the file.
        loader: the training data, whose own random generator is kept, too.
    """

    def __init__(self, path: str | Path, loader: Any) -> None:
        self.path = Path(path)
        self._generator = getattr(loader, "generator", None)

    def write(self, run: TrainingRun, history: list[Epoch], best: Best | None) -> None:
        """Write the file, whole or not at all.

        Raises:
            CheckpointError: it cannot be written.
        """
        values = {
            "plan": _identity(run),
            "step": run.step,
            "stage": run.stage,
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "lr_schedule": None if run.lr_schedule is None else run.lr_schedule.state_dict(),
            "random": random_state(),
            "loader": None if self._generator is None else self._generator.get_state(),
            "history": [asdict(epoch) for epoch in history],
            "best": None if best is None else asdict(best),
        }
        partial = self.path.with_name(f"{self.path.name}.partial")
        try:
            torch.save(values, partial)
            partial.replace(self.path)
        except (OSError, RuntimeError) as error:
            raise CheckpointError(f"cannot keep the training in {self.path}: {error}") from error

    def take_up(self, run: TrainingRun) -> tuple[list[Epoch], Best | None]:
        """Bring a run that has just begun to where the file is; without a file it stays where it is.

        The stages that had begun are begun again, so that the model has the same quantizers and the optimizer the same
        parameters; then every value is the file's.

        Raises:
            CheckpointError: the file is damaged, or of another training.
        """
        if not self.path.exists():
            return [], None
        values = self._read(run)
        for _ in range(values["stage"]):
            run.begin_stage()
        try:
            run.model.load_state_dict(values["model"])
            run.optimizer.load_state_dict(values["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{self.path} is of the training of another model: {error}") from error
        if run.lr_schedule is not None:
            run.lr_schedule.load_state_dict(values["lr_schedule"])
        run.step = values["step"]
        run.watch()
        set_random_state(values["random"])
        if self._generator is not None and values["loader"] is not None:
            self._generator.set_state(values["loader"])
        best = None if values["best"] is None else Best(**values["best"])
        return [Epoch(**epoch) for epoch in values["history"]], best

    def _read(self, run: TrainingRun) -> dict[str, Any]:
        try:
            values: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            kept = values["plan"]
        except (OSError, RuntimeError, EOFError, KeyError, TypeError, UnpicklingError) as error:
            raise CheckpointError(
                f"{self.path} keeps no training that can be taken up ({type(error).__name__}: {error}); delete it, or "
                "name another file"
            ) from error
        if kept != _identity(run):
            raise CheckpointError(
                f"{self.path} keeps another training ({kept}), not this one ({_identity(run)}); delete it, or name "
                "another file"
            )
        return values


def _identity(run: TrainingRun) -> str:
    """What must be the same for a training to go on: the plan, and how many steps it has."""
    return f"{run.plan!r}, {run.steps} steps"
