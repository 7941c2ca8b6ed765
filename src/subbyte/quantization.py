"""The calls that most people need: quantize, prepare, convert, fit."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from subbyte.adaptor import TunableModel
from subbyte.adaptor.pytorch.adaptor import PyTorchAdaptor
from subbyte.adaptor.pytorch.batch import Batch, check_data
from subbyte.adaptor.pytorch.computed_weights import Sample
from subbyte.adaptor.pytorch.convert import convert, convert_in_place, packed_weights
from subbyte.adaptor.pytorch.float_model import check_float
from subbyte.adaptor.pytorch.modes import evaluating, take_modes
from subbyte.adaptor.pytorch.splitting import DEFAULT_BATCH_SIZE, split_batches
from subbyte.algorithms import RecoveryMethod, as_methods
from subbyte.algorithms import recover as recover_in_place
from subbyte.capability import Capability, load_capability
from subbyte.config import PostTrainingQuantConfig, as_request, for_training, sampling_size
from subbyte.errors import ConfigError, RecoveryError
from subbyte.numerics import QuantizedTensor
from subbyte.report import training as live_training
from subbyte.report.tuning.live import shown_live
from subbyte.training import (
    Asked,
    TrainingPlan,
    TrainingResult,
    TrainingRules,
    check_rules_used,
    distillation_of,
    run_training,
    train_by,
)  # fmt: skip
from subbyte.tuning import (
    DEFAULT_FILE,
    Accuracy,
    Limits,
    Task,
    TuneResult,
    distribution_of,
    early_stopping_of,
    read_goal,
    search_best,
    tuning_result,
)  # fmt: skip

BUILT_IN = "pytorch_cpu"

__all__ = [
    "convert",
    "fit",
    "prepare",
    "prepare_qat",
    "quantize",
    "query_fw_capability",
    "train",
    "tune",
    "tuning_result",
    "weights",
]


def quantize(
    model: nn.Module,
    config: Any,
    data: Any = None,
    *,
    first_last: str | None = None,
    capability: Any = None,
    recover: Any = None,
    seed: int = 0,
    resume: str | Path | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> nn.Module:
    """A quantized copy of a model, exactly as requested, its weights packed.

    Args:
        model: float; not changed.
        config: a shorthand such as `"w4a8"`, a dict, a PostTrainingQuantConfig, a TuneConfig, or the path of a
            YAML file.
        data: calibration data: one tensor (a batch), or an iterable of batches, each a tensor, a tuple of
            positional or a dict of keyword arguments. A single batch with two arguments is `[(x, y)]`; a tuple of
            tensors is refused. None serves weight-only and dynamic quantization.
        first_last: the precision of the first and last layers, as in `"int8"`.
        capability: a capability, or the path of its file; the built-in one where left out.
        recover: methods that recover accuracy, in the order they run: names, `{name: options}`, or RecoveryMethod
            objects; left out, those that are among the config's recipes.
        seed: of the randomness in these methods.
        resume: a folder in which finished parts of their work are kept, so that an interrupted run goes on there.
        batch_size: the largest number of samples that go through the model at a time. A larger batch of `data` is split
            along its first axis if the model computes each sample by itself. Default: 128.

    Returns:
        the converted model, in eval().

    Raises:
        SubbyteError: one of its kinds, if the request, the model or the data is not right.
    """
    config = as_request(config)
    methods = _methods(config, recover)
    _check_run(methods, seed, resume)
    stream = _stream(model, config, data, batch_size)
    if methods:
        prepared = _recovered(model, config, stream, first_last, capability, methods, seed, resume)
        return convert_in_place(prepared)
    return PyTorchAdaptor(_capability(capability)).quantize_as(model, config, stream, first_last)


def prepare(
    model: nn.Module,
    config: Any,
    data: Any = None,
    *,
    first_last: str | None = None,
    capability: Any = None,
    recover: Any = None,
    seed: int = 0,
    resume: str | Path | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> nn.Module:
    """A prepared copy of a model: float weights, calibrated quantizers; arguments as for `quantize`.

    In eval() it computes what the converted model will, bit for bit; in train() it fake-quantizes.
    """
    config = as_request(config)
    methods, stream = _methods(config, recover), _stream(model, config, data, batch_size)
    return _recovered(model, config, stream, first_last, capability, methods, seed, resume)


def prepare_qat(
    model: nn.Module,
    config: Any,
    data: Any = None,
    *,
    first_last: str | None = None,
    capability: Any = None,
    training: Any = None,
    recover: Any = None,
    seed: int = 0,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> nn.Module:
    """A prepared copy of a model, ready to be trained by any optimizer; then `convert` packs it.

    In train() it fake-quantizes, each tensor by a gradient of its own; what those learn, scales above all, are
    parameters of the model. In eval() it computes what the converted model will, bit for bit. BatchNorm statistics,
    random state and modes are the model's, and so are the keys of its state_dict, beside those of quantizers.

    Args:
        model: float; not changed.
        config: as for `quantize`, or a QuantizationAwareTrainingConfig. Ops that would be static are `quant_aware`,
            as the capability lists it for training; those of a TuneConfig stay what it says.
        data: calibration data, as for `quantize`: what training begins with.
        first_last: the precision of the first and last layers, as in `"int8"`.
        capability: as for `quantize`.
        training: a TrainingRules, or its fields: which gradient each quantizer has, and where scales begin.
        recover: methods that recover accuracy, as for `quantize`, as a better start; scales begin at theirs.
        seed: of the randomness in these methods.
        batch_size: of the calibration data, as for `quantize`.

    Returns:
        the prepared model, its parts in the modes of the model's.

    Raises:
        SubbyteError: one of its kinds, if the request, the model or the data is not right.
    """
    request, rules = for_training(as_request(config)), TrainingRules.of(training)
    methods = _methods(request, recover)
    stream = _stream(model, request, data, batch_size)
    kept = None if stream is None else list(stream)
    prepared = _recovered(model, request, kept, first_last, capability, methods, seed, None)
    if methods:
        rules = rules.model_copy(update={"start": None})
        take_modes(prepared, model)
    train_by(prepared, rules, Sample(kept or []))
    check_rules_used(prepared, rules)
    Asked(_capability(capability), first_last, TrainingRules.of(training)).remember(prepared)
    return prepared


def train(
    model: nn.Module,
    loader: Any,
    loss_fn: Callable[[Any, Any], Tensor],
    *,
    distill: Any = None,
    data: Any = None,
    evaluate: Callable[[nn.Module], Any] | None = None,
    checkpoint: str | Path | None = None,
    seed: int = 0,
    **plan: Any,
) -> TrainingResult:
    """Train a model, quantized or float; a loop of one's own serves as well.

    The scales that are learned are watched, and take steps in proportion to them where the optimizer's have a size of
    their own, or where `relative_steps` asks for it (`training.RelativeSteps`); gradients that are scheduled are told
    of progress. Standard error has a line for each epoch, and in a terminal one that says how far it is.

    Args:
        model: made by `prepare_qat`, or float; it is what is trained.
        loader: the batches of an epoch, pairs of inputs (a tensor, a tuple or a dict of arguments) and target.
        loss_fn: from the model's output and the target to the loss.
        distill: a teacher, whose logits are learned from, or a `training.Distillation`.
        data: calibration data, as for `prepare_qat`; for stages, and for BatchNorm that is found anew. For stages large
            batches are split as by `prepare_qat`; BatchNorm normalizes by each batch as it is given.
        evaluate: from the model, in eval(), to its metric, after each epoch.
        checkpoint: a file that keeps the training after each epoch; where it is there the training goes on from it, bit
            for bit as if it had not been interrupted. It must be the same one: the model made anew, from the same
            weights, the same configuration, plan, loss, distillation and seed.
        seed: of all that is random.
        plan: how long, by which optimizer and so on: the fields of `training.TrainingPlan`.

    Returns:
        the model, in eval(), and its epochs.

    Raises:
        TrainingError: the loss or a scale is not finite; the message names the scale that left its range first.
        SubbyteError: another of its kinds, if something that is asked is not right.
    """
    _check_seed(seed)
    chosen = TrainingPlan(**plan)
    with live_training.shown_live() as watch:
        return run_training(
            model, loader, loss_fn, chosen, distill=distillation_of(distill), data=data, evaluate=evaluate,
            checkpoint=checkpoint, seed=seed, watch=watch,
        )  # fmt: skip


def fit(
    model: nn.Module,
    conf: Any,
    calib_dataloader: Any = None,
    eval_func: Callable[[nn.Module], Any] | None = None,
    *,
    capability: Any = None,
    loss_fn: Callable[..., Any] | None = None,
    seed: int = 0,
    storage: Any = DEFAULT_FILE,
    study: str | None = None,
    distributed: Any = None,
    early_stopping: Any = None,
    confirm: Callable[[nn.Module], Any] | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> nn.Module:
    """Quantize as a PostTrainingQuantConfig says, with the names and defaults of Intel Neural Compressor 2.x.

    With an evaluation the model is tuned by the config's accuracy and tuning criteria, and `tuning_result` of what
    comes back tells how; unlike there, the best model found comes back also where none is good enough.

    Args:
        model: float; not changed.
        conf: what to do.
        calib_dataloader: data as for `quantize`; of an (input, label) pair the label is dropped.
        eval_func: from a model to its metric, to several by name, or to scores of samples, as for `tune`.
        capability: as for `quantize`.
        loss_fn: for strategies that need gradients, as for `tune`.
        seed: as for `quantize` and `tune`.
        storage, study: keep the trials and take up a search that was interrupted, as for `tune`.
        distributed: who tries them, as for `tune`.
        early_stopping: of an evaluation, as for `tune`.
        confirm: a second evaluation, on other data, as for `tune`.
        batch_size: of the calibration data, as for `quantize`.

    Raises:
        SubbyteError: one of its kinds, if something that is asked is not right.
    """
    data = _without_labels(calib_dataloader)
    if eval_func is None:
        given = {
            "loss_fn": loss_fn,
            "study": study,
            "distributed": distributed,
            "early_stopping": early_stopping,
            "confirm": confirm,
        }
        for name in (name for name, value in given.items() if value is not None):
            raise ConfigError(f"{name}: nothing is tuned without an evaluation; give eval_func, or leave {name} out")
        return quantize(model, conf, data, capability=capability, seed=seed, batch_size=batch_size)
    _check_seed(seed)
    request = as_request(conf)
    if not isinstance(request, PostTrainingQuantConfig):
        raise ConfigError("a TuneConfig says what every op gets, so there is nothing to tune; leave eval_func out")
    wanted, search = request.accuracy_criterion, request.tuning_criterion
    task = Task(
        eval_func,
        Accuracy(wanted.tolerable_loss, wanted.criterion, wanted.higher_is_better, confidence=wanted.confidence),
        read_goal(search.objective),
        search.strategy,
        search.strategy_kwargs or {},
        _methods(request, None),
        seed,
        loss_fn,
        storage,
        study,
        distribution_of(distributed),
        early_stopping_of(early_stopping),
        confirm,
    )
    limits = Limits(search.max_trials, search.timeout or None, first_met=not search.timeout)
    stream = _stream(model, request, data, batch_size)
    tunable = PyTorchAdaptor(_capability(capability)).tunable(model, request, stream)
    result: nn.Module = _searched(model, tunable, task, limits).model
    return result


def tune(
    model: nn.Module,
    data: Any,
    evaluate: Callable[[nn.Module], Any],
    *,
    config: Any = None,
    first_last: str | None = None,
    capability: Any = None,
    max_loss: float = 0.01,
    criterion: Literal["relative", "absolute"] = "relative",
    higher_is_better: bool | Mapping[str, bool] = True,
    metric_weights: Mapping[str, float] | None = None,
    confidence: float | None = 0.9,
    confirm: Callable[[nn.Module], Any] | None = None,
    objective: str | Mapping[str, float] = "size",
    budgets: Mapping[str, float] | None = None,
    strategy: str = "sensitivity",
    strategy_options: Mapping[str, Any] | None = None,
    recover: Any = "default",
    loss_fn: Callable[..., Any] | None = None,
    max_trials: int = 60,
    timeout: float | None = None,
    seed: int = 0,
    storage: Any = DEFAULT_FILE,
    study: str | None = None,
    distributed: Any = None,
    early_stopping: Any = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> TuneResult:
    """The smallest, or fastest, quantized model that loses no more accuracy than is tolerable.

    Args:
        model: float; not changed.
        data: calibration data, as for `quantize`.
        evaluate: from a model, in eval(), to its metric: a number; a score for each sample, whose mean is the metric,
            as a one-dimensional tensor, array or list; either of them by name; or a generator that yields, for each
            batch, a tensor of its samples' scores. It is given `model` itself first. Scores let the search show that
            the loss is tolerable; of a number the loss is an estimate.
            Parameters, buffers, attributes and hooks of it that the evaluation changes are put back.
        config: what is fixed and which alternatives there are, in any form that `quantize` takes but a TuneConfig; left
            out, every op may have the integers of two to eight bits and fp32.
        first_last: the precision of the first and last layers.
        capability: as for `quantize`.
        max_loss: how much worse than the float model's the metric may be.
        criterion: whether that is a share of the metric or in its own units.
        higher_is_better: of all metrics, or of each by name.
        metric_weights: of several metrics, whose weighted mean loss then counts; else the worst of all does.
        confidence: of an `evaluate` that gives scores: with which it is shown that the loss is at most `max_loss`, on
            samples that took no part in the search. They must come in the same order each time. None: the loss is
            estimated.
        confirm: a second evaluation, of data that `evaluate` does not see. It decides among a few models that the
            search takes for good enough: by the confidence if it gives scores, else by its number.
        objective: what to make small: `size` (bytes), `bops` (bit operations), or several with weights.
        budgets: what objectives may be at most, by name.
        strategy: how the space is searched, by name.
        strategy_options: of the strategy.
        recover: recovery methods, as for `quantize`, that are tried before an op is given a wider rung: in a quick form
            in the search, in full on the best that it finds. `default` is `auto` with one minute for each of these, if
            that can work with the model and the data; `[]` is none.
        loss_fn: from a model and a batch of data to a loss, for strategies that need gradients.
        max_trials: trials at most, in the whole study.
        timeout: seconds at most; None is no limit.
        seed: of all that is random.
        storage: keeps the trials: a file (SQLite), a database's URL, or an Optuna storage.
        study: the study's name in the storage, to go on with; left out, a search that was interrupted is taken up, and
            else a new one begins.
        distributed: `"shared"`: every process that makes this call, with the same storage and study, takes part in one
            search; `"ray"`: trials run on a Ray cluster; or with settings: `tuning.Shared(...)`, `tuning.Ray(...)`,
            `{"ray": {"workers": 4}}`.
        early_stopping: of an `evaluate` that yields scores: the confidence, as in 0.99, with which it must be certain
            that the loss is too much for an evaluation to end before its last sample; where scores are not within 0 and
            1, `tuning.EarlyStopping(...)`. Samples must come in a random order. Left out, all are looked at.
        batch_size: of the calibration data, as for `quantize`.

    Raises:
        EvaluationError: `evaluate` returned no usable metric, or replaced layers or tensors of the float model.
        SubbyteError: another of its kinds, if something that is asked is not right.
        Exception: what `evaluate` raised of the float model, three times in a row.
    """
    _check_seed(seed)
    request = as_request({} if config is None else config)
    if not isinstance(request, PostTrainingQuantConfig):
        raise ConfigError(
            "a TuneConfig says what every op gets, so there is nothing to tune; give alternatives instead"
        )
    by_default = recover == "default" and not request.recovery
    recipes = None if by_default else _methods(request, None if recover == "default" else recover)
    stream = _stream(model, request, data, batch_size)
    tunable = PyTorchAdaptor(_capability(capability)).tunable(model, request, stream, first_last)
    task = Task(
        evaluate, Accuracy(max_loss, criterion, higher_is_better, metric_weights or {}, confidence),
        read_goal(objective, budgets), strategy, strategy_options or {}, recipes, seed, loss_fn,
        storage, study, distribution_of(distributed), early_stopping_of(early_stopping), confirm,
    )  # fmt: skip
    return _searched(model, tunable, task, Limits(max_trials, timeout))


def query_fw_capability(model: nn.Module, data: Any = None, *, capability: Any = None) -> dict[str, Any]:
    """What each op of a model can have: `{'opwise': {(name, type): [...]}, 'optypewise': {type: [...]}}`."""
    return PyTorchAdaptor(_capability(capability)).query_fw_capability(model, data)


def weights(model: nn.Module) -> dict[str, QuantizedTensor]:
    """The quantized weights of a prepared or converted model, by op name."""
    return packed_weights(model)


def _searched(model: nn.Module, tunable: TunableModel, task: Task, limits: Limits) -> TuneResult:
    with evaluating(model), shown_live(task.accuracy, task.goal, limits) as live:
        return search_best(model, tunable, task, limits, live.watch, live.progress)


def _methods(config: Any, asked: Any) -> list[RecoveryMethod]:
    named = config.recovery if isinstance(config, PostTrainingQuantConfig) else []
    if asked is not None and named:
        raise RecoveryError("recovery methods are named both by recover= and by the config's recipes; keep one of them")
    return as_methods(named if asked is None else asked)


def _check_run(methods: list[RecoveryMethod], seed: Any, resume: Any) -> None:
    _check_seed(seed)
    if resume is not None and not methods:
        raise RecoveryError("resume: there is nothing to keep, as no recovery method is asked for; give recover=[...]")


def _check_seed(seed: Any) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"seed: a whole number of 0 or more is expected, not {seed!r}")


def _stream(model: nn.Module, config: Any, data: Any, batch_size: int) -> Iterable[Batch] | None:
    """Return the batches to calibrate on; None without data."""
    if data is None:
        return None
    check_float(model)  # before a forward tells whether its batches can be split
    return split_batches(model, data, batch_size, sampling_size(config))


def _recovered(
    model: nn.Module, config: Any, stream: Iterable[Batch] | None, first_last: str | None, capability: Any,
    methods: list[RecoveryMethod], seed: int, resume: str | Path | None,
) -> nn.Module:  # fmt: skip
    adaptor = PyTorchAdaptor(_capability(capability))
    _check_run(methods, seed, resume)
    if not methods:
        return adaptor.prepare(model, config, stream, first_last)
    # Methods go through the data again and again: all must meet the same batches, in the same order.
    kept = None if stream is None else list(stream)
    prepared = adaptor.prepare(model, config, kept, first_last)
    recover_in_place(prepared, methods, kept or [], seed=seed, resume=resume)
    return prepared


def _capability(capability: Any) -> Capability:
    return load_capability(BUILT_IN if capability is None else capability)


def _without_labels(loader: Any) -> Any:
    """Data whose batches of two, (input, label), are the input alone; what is no stream of batches is left as it is."""
    if loader is not None:
        check_data(loader)
    is_stream = isinstance(loader, Iterable) and not isinstance(loader, Tensor | Mapping)
    return _Inputs(loader) if is_stream else loader


class _Inputs:
    """A loader of (input, label) pairs, as batches of inputs."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return (batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch for batch in self.loader)
