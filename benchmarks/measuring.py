"""What is measured of a layer, in which circumstances, and against which ceiling of the processor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ceilings import Ceilings
from layers import Layer
from own_layers import OwnLayer
from timing import Times, in_turns

MODEL, OPERATOR, ON_CODES = "model", "op", "op, codes in and out"  # how a layer of ours is called


@dataclass(frozen=True)
class Case:
    """Where a layer is measured.

    Args:
        kind: Linear or Conv2d.
        name: of the shape: M=1, or 64 channels.
        shape: what the name stands for.
        operations: of one layer, a multiplication and an addition counting as two.
        weights: HOT, the same at every call, or COLD, none in a cache.
        isa: the instruction set that was forced.
        is_bound_by_memory: each weight is used once.
    """

    kind: str
    name: str
    shape: str
    operations: float
    weights: str = "HOT"
    isa: str = ""
    is_bound_by_memory: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.shape}, {self.weights}{f', {self.isa} forced' if self.isa else ''}"

    @property
    def key(self) -> str:
        """Name and circumstances, as goals ask for them."""
        return " ".join(filter(None, [self.kind, self.name, self.weights, self.isa]))


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
        seconds: for a case.
        cold_bytes: of weights that a COLD layer goes round.
    """

    def __init__(self, seconds: float, cold_bytes: int) -> None:
        self._seconds = seconds
        self._cold_bytes = cold_bytes
        self._cases: dict[str, Case] = {}
        self._found: dict[tuple[str, str], Measured] = {}

    def measure(self, case: Case, peers: Mapping[str, Layer], own: Mapping[str, OwnLayer]) -> None:
        """Take turns among all layers."""
        layers = dict(peers)
        for name, layer in own.items():
            layers[f"{name}: {MODEL}"] = layer.model
            layers[f"{name}: {OPERATOR}"] = layer.operators
            if layer.on_codes is not None:
                layers[f"{name}: {ON_CODES}"] = layer.on_codes
        is_hot = case.weights == "HOT"
        calls = {name: layer.hot() if is_hot else layer.cold(self._cold_bytes) for name, layer in layers.items()}
        alone = {f"{name}: {OPERATOR}": layer.alone for name, layer in own.items()}
        for name, times in in_turns(calls, self._seconds).items():
            of_layer = layers[name].per_layer(times)
            work = float(layers[name].nbytes) if case.is_bound_by_memory else case.operations
            self.add(case, name, Measured(of_layer, work, ceiling_of(case, name), alone.get(name, True)))

    def add(self, case: Case, name: str, measured: Measured) -> None:
        """What was found."""
        self._cases[case.key] = case
        self._found[case.key, name] = measured

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

    def to_json(self) -> list[dict[str, Any]]:
        """For another process."""
        return [
            {"case": vars(self._cases[key]), "name": name, **(vars(measured) | {"times": measured.times.seconds})}
            for (key, name), measured in self._found.items()
        ]

    def add_json(self, rows: list[dict[str, Any]]) -> None:
        """What another process found."""
        for row in rows:
            times = Times(tuple(row["times"]))
            measured = Measured(times, row["work"], row["ceiling"], row["alone"])
            self.add(Case(**row["case"]), row["name"], measured)


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
