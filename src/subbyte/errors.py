"""Everything Subbyte raises on bad input: one small hierarchy."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


class SubbyteError(Exception):
    """Base of all errors of this library. The message says what was wrong, where, and what to do."""


class DataTypeError(SubbyteError):
    """A data type that cannot be: no values, duplicates, too few bits, a name that is taken or unknown."""


class ConfigError(SubbyteError):
    """A request that is misspelt, matches nothing, contradicts itself, or that the capability does not allow."""


class RecoveryError(ConfigError):
    """A recovery method that is unknown, misspelt, out of order, or has no meaning for a model or an op of it."""


class CapabilityError(SubbyteError):
    """A capability file that cannot be read or does not follow the schema."""


class CalibrationError(SubbyteError):
    """Calibration data that is missing, empty, of the wrong shape, or not finite."""


class ModelError(SubbyteError):
    """A model that cannot be quantized as it is: already quantized, no ops, parametrized weights."""


class UnseenOpError(SubbyteError):
    """A quantized model took a path that no calibration batch took; running it in float would be silent."""


class CheckpointError(SubbyteError):
    """A checkpoint that is damaged, of another version or model, or in a format that cannot hold what it is to."""


class KernelError(SubbyteError, RuntimeError):
    """Arguments that an operator cannot work on, or native kernels that cannot be used."""


class LostSignWarning(UserWarning):
    """A binary input that is never negative: its sign is the same everywhere, and tells the op nothing."""


class UnusedRuleWarning(UserWarning):
    """A rule of training that no quantizer of a model is trained by, unless a later configuration brings one."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The hint of an error message: `; did you mean 'X'?`, or nothing when no spelling is near."""
    choices = sorted({str(choice) for choice in allowed if _may_be_meant(str(word).lower(), str(choice).lower())})
    matches = difflib.get_close_matches(str(word).lower(), [choice.lower() for choice in choices], n=1, cutoff=0.6)
    spelt = [choice for choice in choices if choice.lower() in matches]  # Conv2d and conv2d
    return f"; did you mean {difflib.get_close_matches(str(word), spelt, n=1, cutoff=0.0)[0]!r}?" if matches else ""


def _may_be_meant(word: str, choice: str) -> bool:
    """Whether a spelling may be a slip of another: of short names (ReLU and elu) one letter makes two."""
    return len(word) > 4 or word[:1] == choice[:1] or sorted(word) == sorted(choice)


def listing(names: Iterable[str]) -> str:
    """Names in a stable order, for 'allowed: ...' in messages."""
    return ", ".join(sorted({str(name) for name in names})) or "nothing"


def refuses_misspelt(error: type[SubbyteError]) -> Callable[[Class], Class]:
    """Decorates a class whose constructor answers wrong arguments with `error` and the nearest spelling."""

    def decorate(cls: Class) -> Class:
        init = vars(cls)["__init__"]

        @functools.wraps(init)
        def constructor(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                init(self, *args, **kwargs)
            except TypeError:
                problem = _misfit(cls, args, kwargs)  # only now: a call that is right costs nothing
                if not problem:
                    raise
                raise error(problem) from None

        cls.__init__ = constructor  # type: ignore[misc]  # of this very class
        return cls

    return decorate


def _misfit(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """In what way arguments are not those that a constructor takes; empty where they are."""
    signature = inspect.signature(cls)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as problem:
        allowed = list(signature.parameters)
        hints = [nearest(key, allowed) for key in kwargs if key not in allowed]
        return f"{cls.__name__}: {problem}{''.join(hints[:1])} (allowed: {', '.join(allowed)})"
    return ""


class TuningError(ConfigError):
    """What is asked of tuning has no meaning, or its study is of another model."""


class TrainingError(SubbyteError):
    """Training that went wrong: a loss or a learned scale that is no longer finite."""


class EvaluationError(SubbyteError):
    """An evaluation returned no usable metric."""
