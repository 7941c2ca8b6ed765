"""Running methods on a prepared model, unit by unit."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from torch import nn

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.adaptor.pytorch.state import state_of
from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.store import UnitStore
from subbyte.errors import CalibrationError, RecoveryError

LEAST_SAMPLES = 8  # fewer tell nothing of a distribution


def recover(
    model: nn.Module,
    methods: Sequence[RecoveryMethod],
    batches: Sequence[Batch],
    *,
    seed: int = 0,
    resume: str | Path | None = None,
    quick: bool = False,
    before_unit: Callable[[], None] = lambda: None,
) -> None:
    """Apply methods to a prepared model, in place.

    Args:
        model: prepared and calibrated; its float weights are its own.
        methods: in an order that `as_methods` has checked.
        batches: calibration data.
        seed: of all that is random.
        resume: a folder in which each finished unit is kept; of an interrupted run with the same model, methods, data
            and seed those that are there are not computed again.
        quick: use each method's cheaper form (`RecoveryMethod.quick`).
        before_unit: called before each unit. What it raises ends the recovery, and leaves the model half recovered.

    Raises:
        CalibrationError: a method needs data and there is none, or too little.
        RecoveryError: a method has no meaning for an op.
        CheckpointError: the folder holds the units of another run, or cannot be written.
    """
    training = model.training
    model.eval()
    prepared = PreparedModel(model, batches)
    store = None if resume is None else UnitStore.of(Path(resume), prepared, methods, seed)
    with prepared.without_cache(), _bar() as bar:
        for method in _chosen(methods, prepared, store):
            _apply(method.quick() if quick else method, prepared, seed, store, bar, before_unit)
    prepared.measure_weights()
    model.train(training)


def check_recovery(model: nn.Module, methods: Sequence[RecoveryMethod], batches: Sequence[Batch]) -> None:
    """Refuse methods that cannot work on a model, before time is spent on them.

    Args:
        model: prepared and calibrated; those of the methods that move the float model are applied to it.
        methods, batches: as for `recover`.

    Raises:
        CalibrationError, RecoveryError: as `recover`.
    """
    prepared = PreparedModel(model.eval(), batches)
    for method in _chosen(methods, prepared, None):
        for unit in list(method.units(prepared)):
            if method.stage == Stage.FLOAT:
                method.apply(prepared, unit, _generator(0, unit))


def _chosen(
    methods: Sequence[RecoveryMethod], model: PreparedModel, store: UnitStore | None
) -> Sequence[RecoveryMethod]:
    """The methods that run: those of an interrupted run again, where a choice may have hung on how fast it was."""
    if not (model.ops or model.projections or model.input_quantizers):
        raise RecoveryError("there is nothing to recover: no op of this model is quantized; ask for another precision")
    known = None if store is None else store.chosen()
    chosen = known if known is not None else [each for one in methods for each in one.chosen(model)]
    for method in chosen:
        if method.needs_data:
            _check_data(method, model.batches)
    if store is not None:
        store.keep_chosen(chosen)
    return chosen


def _apply(
    method: RecoveryMethod, model: PreparedModel, seed: int, store: UnitStore | None, bar: Progress,
    before_unit: Callable[[], None],
) -> None:  # fmt: skip
    if method.stage > Stage.FLOAT:
        model.keep_reference()
    model.forget_calls()
    units, restored = list(method.units(model)), False
    task = bar.add_task(str(method), total=len(units))
    for unit in units:
        before_unit()
        key = f"{method.name}/{unit}"
        if store is not None and store.restore(key, model.model):
            model.look_again()
            restored = True
        else:
            before = {} if store is None else store.versions(model.model)
            try:
                method.apply(model, unit, _generator(seed, key))
            except KeyboardInterrupt as error:
                kept = f"run again with the same resume folder to go on after {bar.tasks[task].completed:.0f} units"
                lost = "nothing was changed but time: give resume='FOLDER' to keep finished units next time"
                error.add_note(f"interrupted in {method.name!r}: {lost if store is None else kept}")
                raise
            if store is not None:
                store.keep(key, model.model, before)
        bar.advance(task)
    if method.stage == Stage.FLOAT:
        if restored:  # scales were stored; what they were found from, which later methods read, was not
            model.observe()
        state_of(model.model).moved_by.append(method.name)


def _generator(seed: int, key: str) -> torch.Generator:
    """The same for the same seed and unit, whatever ran before."""
    digest = hashlib.sha256(f"{seed} {key}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _bar() -> Progress:
    """Units done, time taken and time left, on standard error where that is a terminal."""
    console = Console(stderr=True)
    description, _, percentage, _ = Progress.get_default_columns()
    columns = (description, BarColumn(bar_width=20), percentage, TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _check_data(method: RecoveryMethod, batches: Sequence[Batch]) -> None:
    samples = sum(batch.samples for batch in batches)
    if not samples:
        raise CalibrationError(f"recovery method {method.name!r} needs calibration data; pass data")
    if samples < LEAST_SAMPLES:
        raise CalibrationError(
            f"recovery method {method.name!r}: {samples} calibration samples are too few to tell more than their own "
            f"noise; give at least {LEAST_SAMPLES}, better some hundred"
        )
    if all(_is_constant(batch, batches[0]) for batch in batches):
        raise CalibrationError(
            f"recovery method {method.name!r}: all calibration samples are the same; give samples that differ"
        )


def _is_constant(batch: Batch, first: Batch) -> bool:
    """Whether every sample of a batch is the first sample of the first one."""
    pairs = zip(tensors_in((batch.args, batch.kwargs)), tensors_in((first.args, first.kwargs)), strict=False)
    return all(x.shape[1:] == y.shape[1:] and bool((x == y[:1]).all()) for x, y in pairs if x.ndim and y.ndim)
