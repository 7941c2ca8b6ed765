"""The file in which a training is kept, epoch by epoch, to go on from bit by bit."""

import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from subbyte.errors import CheckpointError, ConfigError
from subbyte.training.best import Best
from subbyte.training.identity import Identity, differences
from subbyte.training.random_state import random_state, set_random_state
from subbyte.training.result import Epoch
from subbyte.training.run import TrainingRun
from subbyte.training.samplers import generators_of


class TrainingFile:
    """Keeps a training: the model, the optimizer, what is random, and the epochs so far.

    Args:
        path: of the file.
        loader: the training data; random generators of its own, and of its samplers, are kept, too.
        identity: what the training is, which one that is taken up must be, too.

    Raises:
        ConfigError: the path is none.
        CheckpointError: no file can be written there.
    """

    def __init__(self, path: str | Path, loader: Any, identity: Identity) -> None:
        if not isinstance(path, str | Path):
            raise ConfigError(f"checkpoint: the path of a file is expected, not {path!r}")
        self.path = Path(path)
        self._identity = identity
        self._generators = generators_of(loader)
        self._check_writable()

    def write(self, run: TrainingRun, history: list[Epoch], best: Best | None) -> None:
        """Write the file, whole or not at all.

        Raises:
            CheckpointError: it cannot be written.
        """
        values = {
            "training": self._identity,
            "step": run.step,
            "stage": run.stage,
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "lr_schedule": None if run.lr_schedule is None else run.lr_schedule.state_dict(),
            "random": random_state(),
            "loader": [generator.get_state() for generator in self._generators],
            "history": [asdict(epoch) for epoch in history],
            "best": None if best is None else asdict(best),
        }
        try:
            torch.save(values, self._partial)
            self._partial.replace(self.path)
        except (OSError, RuntimeError) as error:
            raise CheckpointError(f"cannot keep the training in {self.path}: {error}") from error
        finally:
            self._partial.unlink(missing_ok=True)  # what a full disk or an interrupt cut off

    def take_up(self, run: TrainingRun) -> tuple[list[Epoch], Best | None]:
        """Bring a run that has just begun to where the file is; without a file it stays where it is.

        The stages that had begun are begun again, so that the model has the same quantizers and the optimizer the same
        parameters; then every value is the file's.

        Raises:
            CheckpointError: the file is damaged, or of another training.
        """
        if not self.path.exists():
            return [], None
        values = self._read()
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
        for generator, state in zip(self._generators, values["loader"], strict=True):
            generator.set_state(state)
        best = None if values["best"] is None else Best(**values["best"])
        return [Epoch(**epoch) for epoch in values["history"]], best

    def _read(self) -> dict[str, Any]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                damaged = archive.testzip()  # torch.load looks at no checksums
            if damaged is not None:
                raise ValueError(f"the checksum of {damaged} is wrong")
            values: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            found = differences(values["training"], self._identity)
            count = len(values["loader"])
        except Exception as error:  # a damaged file makes the unpickler raise whatever it meets
            raise CheckpointError(
                f"{self.path} keeps no training that can be taken up ({type(error).__name__}: {error}); delete it, or "
                "name another file"
            ) from error
        if not found and count != len(self._generators):
            found = f"the loader had {count} random generators and has {len(self._generators)}"
        if found:
            raise CheckpointError(
                f"{self.path} keeps another training: {found}; call it as before, on a model made anew, delete the "
                "file, or name another"
            )
        return values

    @property
    def _partial(self) -> Path:
        return self.path.with_name(f"{self.path.name}.partial")

    def _check_writable(self) -> None:
        try:
            if self.path.is_dir():
                raise IsADirectoryError("it is a folder")
            self._partial.touch()
            self._partial.unlink()
        except OSError as error:
            raise CheckpointError(f"cannot keep the training in {self.path}: {error}") from error
