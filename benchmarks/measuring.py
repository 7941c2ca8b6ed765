"""What is measured of a layer, and against which ceiling of the processor."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cases import Case
from ceilings import Ceilings
from contenders import Contenders
from libraries import facts_of, turn_of
from own_layers import MODEL, OPERATOR
from timing import Times


@dataclass(frozen=True)
class Measured:
    """One layer in one case.

    Args:
        times: of a layer.
        work: bytes or operations, as the ceiling counts.
        ceiling: what bounds it, by name.
        alone: of an operator, that it does the work of the whole layer.
    """

    times: Times
    work: float
    ceiling: str
    alone: bool = True

    def share(self, ceilings: Ceilings) -> float | None:
        """Of the ceiling; none where that was not measured."""
        limit = ceilings.of(self.ceiling)
        return None if limit is None else self.work / self.times.median / 1e9 / limit


class Results:
    """All that was measured, by case and by the layer's name.

    Args:
        processes: One for each library.
        seconds: How long a case is measured.
        cold_bytes: Bytes of weights that a COLD layer goes round.
    """

    def __init__(self, processes: Contenders, seconds: float, cold_bytes: int) -> None:
        self._processes = processes
        self._seconds = seconds
        self._cold_bytes = cold_bytes
        self._cases: dict[str, Case] = {}
        self._found: dict[tuple[str, str], Measured] = {}

    def measure(self, case: Case, libraries: Sequence[str]) -> None:
        """Measure the layers of these libraries, which take turns."""
        turns = {library: partial(turn_of, library, case, self._cold_bytes) for library in libraries}
        facts: dict[str, tuple[int, bool]] = {}
        for library in libraries:
            facts |= self._processes.ask(library, facts_of, library, case)
        self._cases[case.key] = case
        for name, times in self._processes.take_turns(turns, self._seconds).items():
            nbytes, alone = facts[name]
            work = float(nbytes) if case.is_bound_by_memory else case.operations
            self._found[case.key, name] = Measured(times, work, ceiling_of(case, name), alone)

    def cases(self) -> list[Case]:
        return list(self._cases.values())

    def of(self, key: str) -> dict[str, Measured]:
        """By name, what was measured in the case of this key."""
        return {name: measured for (where, name), measured in self._found.items() if where == key}

    def judged(self, key: str, name: str) -> tuple[str, Measured] | None:
        """A peer, or a layer of ours: its operator where that does the layer's whole work, else its model."""
        found = self.of(key)
        operator = found.get(f"{name}: {OPERATOR}")
        names = [f"{name}: {OPERATOR}"] if operator and operator.alone else [f"{name}: {MODEL}", name]
        return next(((each, found[each]) for each in names if each in found), None)


def ceiling_of(case: Case, name: str) -> str:
    """What bounds a layer of this name in this case."""
    if case.is_bound_by_memory:
        return "L3 read" if case.weights == "HOT" else "DRAM read, huge pages"
    if "W1A1" in name:
        return "AVX2 Harley-Seal popcount" if case.isa == "avx2" else "xor + vpopcntq + add"
    if "fp32" in name:
        return "fp32 FMA"
    if "bf16" in name:
        return "bf16 vdpbf16ps"
    return "AVX2 maddubs" if case.isa == "avx2" else "vpdpbusd zmm"
