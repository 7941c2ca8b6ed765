"""Granularity: reading, writing, refusing."""

import pytest

from subbyte.errors import ConfigError
from subbyte.spec import Granularity


@pytest.mark.parametrize("text", ["per_tensor", "per_channel", "per_token", "per_group(32)", "per_group(1)"])
def test_text_round_trip(text: str) -> None:
    assert str(Granularity.parse(text)) == text
    assert Granularity.parse(Granularity.parse(text)) == Granularity.parse(text)


def test_group_size() -> None:
    assert Granularity.parse("per_group(128)").group_size == 128


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("per_chanel", "did you mean 'per_channel'"),
        ("per_group", "needs a group size"),
        ("per_group(0)", "needs a group size"),
        ("per_group(-4)", "needs a group size"),
        ("per_channel(3)", "takes no size"),
        ("per_group(x)", "cannot be read"),
        ("", "cannot be read"),
        (None, "cannot be read"),
        (32, "cannot be read"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Granularity.parse(text)
