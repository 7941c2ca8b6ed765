"""Regular expressions from files of others, matched with the names of ops."""

import math
import re
import time

import regex

from subbyte.errors import quoted

_BUDGET = 2.0  # seconds, for all patterns of a file and all names together
_LONGEST = 1_000  # characters
_LONGEST_REPEATED = 100_000  # characters, which compile in some tenths of a second and 100 MB


class PatternError(ValueError):
    """A text that is no regular expression that Subbyte takes, or takes too long to match."""


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
        PatternError: it is no regular expression, is longer than 1,000 characters, repeats too much of itself, or is
            verbose.
    """
    if len(pattern) > _LONGEST:
        raise PatternError(f"a pattern may have {_LONGEST:,} characters, got {len(pattern):,}")
    counts = [int(count) for count in re.findall(r"\{([0-9]+)", pattern)]  # `regex` copies what is repeated so often
    size = len(pattern) * math.prod(count or 1 for count in counts)
    if size > _LONGEST_REPEATED:
        raise PatternError(
            f"the characters of a pattern times its counts, as in {{9}}, may be {_LONGEST_REPEATED:,}, got "
            f"{quoted(size)}; write '+' or '*' instead of large counts"
        )
    if re.search(r"\(\?[a-zA-Z]*x", pattern):  # `re` and `regex` read spaces in a count differently
        raise PatternError("verbose patterns, as '(?x) ...', are not supported; write it without spaces and comments")
    try:
        re.compile(pattern)
        return regex.compile(pattern, regex.VERSION0)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise PatternError(f"it is no regular expression: {error}") from None
