"""Regular expressions from files of others, matched with the names of ops."""

import re
import time

import regex

_BUDGET = 2.0  # seconds, for all patterns of a file and all names together
_LONGEST = 1_000  # characters


class PatternError(ValueError):
    """A text that is no regular expression, or takes too long to match."""


class NamePatterns:
    """Matches the patterns of one file with names, within a time limit for all of them together.

    A pattern such as `(a|aa)+$` takes time that is exponential in the length of the name. The standard library cannot
    interrupt a match, so `regex` matches instead. `re` decides which patterns are allowed: the extensions of `regex`
    to its syntax are not.
    """

    def __init__(self) -> None:
        self._left = _BUDGET
        self._compiled: dict[str, regex.Pattern[str]] = {}

    def matches(self, pattern: str, name: str, whole: bool) -> bool:
        """Return whether a name matches a pattern.

        Args:
            pattern: a regular expression of `re`.
            name: the name of an op.
            whole: whether the pattern must match the whole name, or only its beginning.

        Raises:
            PatternError: it is no regular expression, or the time limit is over.
        """
        start = time.perf_counter()
        try:
            if self._left <= 0:
                raise TimeoutError
            if pattern not in self._compiled:
                self._compiled[pattern] = compiled(pattern)
            match = self._compiled[pattern].fullmatch if whole else self._compiled[pattern].match
            return match(name, timeout=self._left) is not None
        except (TimeoutError, MemoryError):
            self._left = 0.0
            raise PatternError(
                f"matching it with the names of ops takes longer than {_BUDGET:g} seconds; write a pattern without "
                "nested or many repetitions"
            ) from None
        finally:
            self._left -= time.perf_counter() - start


def compiled(pattern: str) -> "regex.Pattern[str]":
    """Compile a pattern.

    Raises:
        PatternError: it is no regular expression, or longer than 1,000 characters.
    """
    if len(pattern) > _LONGEST:
        raise PatternError(f"a pattern may have {_LONGEST:,} characters, got {len(pattern):,}")
    try:
        re.compile(pattern)
        return regex.compile(pattern, regex.VERSION0)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise PatternError(f"it is no regular expression: {error}") from None
