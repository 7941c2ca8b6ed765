"""Over which part of a tensor one scale holds."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from subbyte.errors import ConfigError, nearest, quoted

GranularityKind = Literal["per_tensor", "per_channel", "per_token", "per_group"]
_PATTERN = re.compile(r"(\w+?)(?:\((-?\d+)\))?")


@dataclass(frozen=True)
class Granularity:
    """`per_tensor`; `per_channel` and `per_group(n)` along an axis; `per_token`: one for each row of the last axis."""

    kind: GranularityKind = "per_tensor"
    group_size: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(GranularityKind):
            raise ConfigError(
                f"granularity {quoted(self.kind)} is unknown{nearest(self.kind, get_args(GranularityKind))} "
                f"(allowed: per_tensor, per_channel, per_token, per_group(n))"
            )
        if self.kind == "per_group" and self.group_size < 1:
            raise ConfigError("granularity per_group needs a group size of 1 or more, as in per_group(32)")
        if self.kind != "per_group" and self.group_size:
            raise ConfigError(f"granularity {self.kind} takes no size, got {self.group_size}")

    @classmethod
    def parse(cls, text: "str | Granularity") -> "Granularity":
        """Read `per_channel`, `per_group(32)`, ...

        Raises:
            ConfigError: not a granularity.
        """
        if isinstance(text, Granularity):
            return text
        match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(
                f"granularity {quoted(text)} cannot be read (allowed: per_tensor, per_channel, per_token, per_group(n))"
            )
        kind, size = match.groups()
        return cls(kind, int(size or 0))  # type: ignore[arg-type]  # checked in __post_init__

    def __str__(self) -> str:
        return f"{self.kind}({self.group_size})" if self.kind == "per_group" else self.kind
