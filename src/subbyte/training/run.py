"""A training in progress: the model, its optimizer, and what the plan has begun so far."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.state import is_quantized, state_of
from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.errors import CalibrationError, ConfigError, SubbyteError, TrainingError
from subbyte.training.batch_norm import freeze_batch_norm
from subbyte.training.distillation import Distillation
from subbyte.training.monitor import RangeMonitor
from subbyte.training.optimizers import lr_schedule_of, optimizer_of
from subbyte.training.plan import TrainingPlan
from subbyte.training.progress import follows_progress, set_progress
from subbyte.training.relative_steps import OF_THEIR_OWN_SIZE, RelativeSteps
from subbyte.training.requantize import check_requantize, requantize

Loss = Callable[[Any, Any], Tensor]


class TrainingRun:
    """Takes the steps of a plan.

    Args:
        model: made by `prepare_qat`, or float; changed.
        plan: how it is trained.
        steps: of the whole training.
        loss_fn: from output and target to the loss.
        data: calibration data, for stages.
        distill: what is added to the loss.

    Raises:
        ConfigError: the plan does not fit the model, or has stages and there is no data.
    """

    def __init__(
        self, model: nn.Module, plan: TrainingPlan, steps: int, loss_fn: Loss, data: Any, distill: Distillation | None
    ) -> None:
        self.model, self.plan, self.steps, self.loss_fn, self.data, self.distill = (
            model, plan, steps, loss_fn, data, distill,
        )  # fmt: skip
        for stage in plan.stages:
            with _said_of_stages():
                check_requantize(model, stage.config)
            if stage.at * steps > steps - 1:
                raise ConfigError(f"stages: one at {stage.at} begins after the last of {steps} steps; begin it earlier")
        if data is None and (plan.stages or plan.reestimate_batch_norm):
            name = "stages" if plan.stages else "reestimate_batch_norm"
            raise ConfigError(f"{name}: calibration data is needed: give data=...")
        self.step = self.stage = 0
        self.optimizer = optimizer_of(plan.optimizer, model.parameters())
        asked = plan.relative_steps
        if _is_trained(model) and (isinstance(self.optimizer, OF_THEIR_OWN_SIZE) if asked is None else asked):
            RelativeSteps(self.optimizer, model)
        self.lr_schedule = None if plan.lr_schedule is None else lr_schedule_of(plan.lr_schedule, self.optimizer, steps)
        self.watch()

    def begin_epoch(self) -> None:
        """Back to training after an evaluation."""
        self.model.train()
        if self._freezes:
            freeze_batch_norm(self.model)

    def take_step(self, batch: Any) -> float:
        """One step of the optimizer; returns the loss.

        Raises:
            TrainingError: the loss or a scale is not finite; the message names the scale that left its range first.
            ConfigError: the batch is no pair, or the loss is no number.
        """
        inputs, target = self._placed(batch)
        self._begin_what_is_due()
        self.optimizer.zero_grad()
        loss = self._loss(inputs, target)
        if not loss.requires_grad:
            raise ConfigError(
                "loss_fn: the loss has no gradient: compute it of the model's output, without detach() or no_grad()"
            )
        if not bool(torch.isfinite(loss.detach())):
            self._check(loss.detach())  # before it makes every scale what it is itself
        loss.backward()
        if self.plan.clip_gradients is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip_gradients)
        self.optimizer.step()
        if self.lr_schedule is not None:
            self.lr_schedule.step()
        self._check(loss.detach())
        self.step += 1
        return float(loss.detach())

    def begin_stage(self) -> None:
        """Give the model the next stage's configuration.

        Raises:
            TrainingError: nothing can be calibrated, since training has diverged.
        """
        try:
            new = requantize(self.model, self.plan.stages[self.stage].config, self.data)
        except SubbyteError as error:
            self._blame_divergence(error)
            raise
        # To the group that is there: a schedule of learning rates counts groups.
        self.optimizer.param_groups[0]["params"].extend(new)
        self.stage += 1
        self.watch()

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def _freezes(self) -> bool:
        share = self.plan.freeze_batch_norm
        return share is not None and self.step >= share * self.steps

    def _begin_what_is_due(self) -> None:
        frozen = self.plan.freeze_batch_norm
        while self.stage < len(self.plan.stages) and self.step >= self.plan.stages[self.stage].at * self.steps:
            self.begin_stage()
        if frozen is not None and self._freezes and self.step - 1 < frozen * self.steps:
            freeze_batch_norm(self.model)
        if self._scheduled:
            set_progress(self.model, self.step / max(self.steps - 1, 1))

    def _loss(self, inputs: Batch, target: Any) -> Tensor:
        output, distilled = self._output(inputs)
        loss = self.loss_fn(output, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(f"loss_fn: a loss is a tensor of one value, not {shape}")
        return loss + distilled

    def _output(self, inputs: Batch) -> tuple[Any, Tensor | float]:
        try:
            if self.distill is None:
                return self.model(*inputs.args, **inputs.kwargs), 0.0
            return self.distill(self.model, *inputs.args, **inputs.kwargs)
        except (SubbyteError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever the model's own code raises
            shapes = [tuple(x.shape) for x in tensors_in((inputs.args, inputs.kwargs))]
            who = "the model" if self.distill is None else "the model or its teacher"
            raise ConfigError(
                f"loader: {who} does not run on the batch of step {self.step + 1} (tensors of shapes {shapes}): "
                f"{type(error).__name__}: {error}"
            ) from error

    def _blame_divergence(self, error: SubbyteError) -> None:
        """Calibration fails on any data where training went wrong before.

        Raises:
            TrainingError: it did.
        """
        departures = [] if self._monitor is None else self._monitor.departures
        infinite = [name for name, weight in self.model.named_parameters() if not bool(torch.isfinite(weight).all())]
        if departures or infinite:
            story = str(departures[0]) if departures else f"{infinite[0]!r} is not finite"
            raise TrainingError(
                f"training diverged before the stage that begins after step {self.step}: {story}; lower the learning "
                "rate, or clip gradients"
            ) from error

    def watch(self) -> None:
        """Look after the scales that the model learns now, and its weights."""
        self._monitor = RangeMonitor(self.model, self.step) if _is_trained(self.model) else None
        self._scheduled = is_quantized(self.model) and follows_progress(self.model)

    def _check(self, loss: Tensor) -> None:
        if self._monitor is not None:
            self._monitor.check(loss)
        elif not bool(torch.isfinite(loss)):
            raise TrainingError(
                f"training failed in step {self.step + 1}: the loss is not finite; lower the learning rate"
            )

    def _placed(self, batch: Any) -> tuple[Batch, Any]:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            found = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
            raise ConfigError(f"loader: a batch is a pair (inputs, target), not {found}")
        device = next(self.model.parameters()).device
        inputs, target = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tuple(batch))
        try:
            return Batch.of(inputs), target
        except CalibrationError:
            raise ConfigError(
                f"loader: inputs are a tensor, a tuple or a dict of arguments, not {type(inputs).__name__}"
            ) from None


def _is_trained(model: nn.Module) -> bool:
    return is_quantized(model) and state_of(model).run.trained


@contextmanager
def _said_of_stages() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"stages: {error}") from error
