"""Patterns of files from others: the language of `re`, within a time limit."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subbyte.spec.patterns import NamePatterns, PatternError, compiled

NAMES = ["", "lm_head", "model.layers.0.mlp.gate", "model.layers.11.self_attn.q_proj"]
PATTERNS = [
    ".*",
    "lm_head",
    r"model\.layers\.(0|1)\..*",
    ".*(q|k)_proj$",
    "^(?!.*gate).*",
    r".*\d+.*(?<!_head)",
    "[^.]*",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_matches_agrees_with_re(pattern: str) -> None:
    patterns = NamePatterns()
    for name in NAMES:
        assert patterns.matches(pattern, name, whole=True) == (re.fullmatch(pattern, name) is not None)
        assert patterns.matches(pattern, name, whole=False) == (re.match(pattern, name) is not None)


@given(st.text("ab.*+?()|[]{}^$1,2", max_size=8), st.text("ab1", max_size=6))
def test_matches_allows_what_re_allows(pattern: str, name: str) -> None:
    try:
        expected = re.fullmatch(pattern, name) is not None
    except re.error:
        with pytest.raises(PatternError):
            NamePatterns().matches(pattern, name, whole=True)
        return
    except FutureWarning:
        return
    assert NamePatterns().matches(pattern, name, whole=True) == expected


def test_time_limit_is_for_all_matches_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subbyte.spec.patterns._BUDGET", 0.05)
    patterns = NamePatterns()
    with pytest.raises(PatternError, match="takes longer"):
        patterns.matches("(a|aa)+$", "a" * 90 + "b", whole=False)
    with pytest.raises(PatternError, match="takes longer"):
        patterns.matches("a", "a", whole=False)
    assert NamePatterns().matches("a", "a", whole=False)


@pytest.mark.parametrize("pattern", ["(a{600}){600}", "((a{300,}){0}b){300,400}", "a{100001}", f"a{{{'9' * 900}}}"])
def test_compiled_refuses_counts_that_multiply(pattern: str) -> None:
    with pytest.raises(PatternError, match="characters of a pattern times its counts"):
        compiled(pattern)


@pytest.mark.parametrize("pattern", ["(?x)a{9 9}", "b(?ix:a{9 9})"])
def test_compiled_refuses_verbose_patterns(pattern: str) -> None:
    with pytest.raises(PatternError, match="verbose"):
        compiled(pattern)


def test_compiled_takes_counts_of_names() -> None:
    assert compiled(r"layers\.\d{1,2}\.[0-9a-f]{8}\.x{0}").fullmatch("layers.12.0123abcd.")
