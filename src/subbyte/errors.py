"""Everything Subbyte raises on bad input: one small hierarchy."""

import difflib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

_SHOWN = 100  # characters of a value that a message quotes
_LARGEST_SHOWN_BITS = 256
_LISTED = 100  # names
_LONGEST = 10_000  # characters of a message


class SubbyteError(Exception):
    """Base of all errors of this library. The message says what was wrong, where, and what to do.

    Messages quote files of others: control characters are escaped, and the middle of a very long message is left out.
    """

    # Not done in __init__: torch.compile follows a call that raises only if the exception has no __init__ of its own.
    def __str__(self) -> str:
        return shortened(printable(super().__str__()))


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


class UnimplementedOpWarning(UserWarning):
    """A capability lists an op type in a form that Subbyte cannot quantize."""


class UnsupportedOpWarning(UserWarning):
    """An op that stays in float although the capability lists neither a precision nor fp32 for it."""


class UnusedRuleWarning(UserWarning):
    """A rule of training that no quantizer of a model is trained by, unless a later configuration brings one."""


class _ShortRepr(reprlib.Repr):
    """`repr` that takes bounded time and gives at most `_SHOWN` characters, also for nested and shared values."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = _SHOWN

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, int) and x.bit_length() > _LARGEST_SHOWN_BITS:
            return f"an integer of {x.bit_length():,} bits"  # Python refuses to write those of 4,300 digits
        if isinstance(x, dict):  # subclasses too, whose own repr has no bound
            return self.repr_dict(x, level)
        return self.repr_list(x, level) if isinstance(x, list) else super().repr1(x, level)


def quoted(value: object) -> str:
    """Return `repr(value)`, shortened to about a hundred characters, for a message that quotes a file."""
    text = _ShortRepr().repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def printable(text: str) -> str:
    """Return a text with each control character as its escape, so that no file's text controls a terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each == "\n" or each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return a text without its middle if it has more than `longest` characters."""
    kept = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:kept]}...{text[-kept:]}"


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The hint of an error message: `; did you mean 'X'?`, or nothing when no spelling is near."""
    word = str(word)[:_SHOWN]  # what is longer is no slip
    choices = sorted({str(choice) for choice in allowed if _may_be_meant(word.lower(), str(choice).lower())})
    matches = difflib.get_close_matches(word.lower(), [choice.lower() for choice in choices], n=1, cutoff=0.6)
    spelt = [choice for choice in choices if choice.lower() in matches]  # Conv2d and conv2d
    return f"; did you mean {difflib.get_close_matches(word, spelt, n=1, cutoff=0.0)[0]!r}?" if matches else ""


def _may_be_meant(word: str, choice: str) -> bool:
    """Whether a spelling may be a slip of another: of short names (ReLU and elu) one letter makes two."""
    return len(word) > 4 or word[:1] == choice[:1] or sorted(word) == sorted(choice)


def listing(names: Iterable[str]) -> str:
    """Return names in a stable order, the first hundred of them, for 'allowed: ...' in messages."""
    found = sorted({str(name) for name in names})
    more = f", and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
    return printable(", ".join(found[:_LISTED])) + more if found else "nothing"


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
