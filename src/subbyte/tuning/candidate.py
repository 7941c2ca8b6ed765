"""What a strategy proposes."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from subbyte.errors import TuningError
from subbyte.spec import OpConfig, OpKey, TuneConfig

Recovery = Literal["none", "quick", "full"]  # whether recovery methods run, and in which form


@dataclass(frozen=True)
class Candidate:
    """A configuration to be tried.

    Args:
        config: what every op gets.
        recovery: whether the recovery methods of the search run on it: `quick` is their cheaper form, on a part of the
            calibration data.
    """

    config: TuneConfig
    recovery: Recovery = "none"

    @property
    def recovered(self) -> bool:
        return self.recovery != "none"


class Encoding:
    """Candidates as short texts: for each op the number of its alternative.

    Args:
        alternatives: for each op.
        recovery: names the recovery methods, their options and their seed; other ones make other trials.
        stopping: names what may end an evaluation early; another one makes other trials, too.
    """

    def __init__(
        self, alternatives: Mapping[OpKey, Sequence[OpConfig]], recovery: str = "", stopping: str = ""
    ) -> None:
        self._alternatives = alternatives
        self._recovery = recovery
        self._stopping = [stopping] if stopping else []
        self._numbers = {key: {each: index for index, each in enumerate(found)} for key, found in alternatives.items()}

    def encode(self, candidate: Candidate) -> str:
        """The text; equal for equal candidates alone.

        Raises:
            TuningError: an op has what is none of its alternatives, or is not named.
        """
        numbers = [self._number(candidate.config, key) for key in self._alternatives]
        recovery = [candidate.recovery, self._recovery] if candidate.recovered else None
        return json.dumps([numbers, recovery, *self._stopping], separators=(",", ":"))

    def _number(self, config: TuneConfig, key: OpKey) -> int:
        try:
            return self._numbers[key][config.op[key]]
        except KeyError:
            given = config.op.get(key, "nothing")
            raise TuningError(
                f"the strategy gives op {key[0]!r} ({key[1]}) {given}, which is none of its alternatives"
            ) from None

    def decode(self, text: str) -> Candidate | None:
        """The candidate of a text; None of one that other recovery methods ran on, or that was evaluated otherwise."""
        numbers, recovery, *stopping = json.loads(text)
        form: Recovery
        form, methods = ("none", self._recovery) if recovery is None else recovery
        if methods != self._recovery or stopping != self._stopping:
            return None
        pairs = zip(self._alternatives.items(), numbers, strict=True)
        return Candidate(TuneConfig({key: found[number] for (key, found), number in pairs}), form)

    @cached_property
    def digest(self) -> str:
        """Tells these alternatives from others."""
        lines = [f"{key}: {'; '.join(map(str, found))}" for key, found in self._alternatives.items()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
