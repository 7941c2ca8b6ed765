"""What a comparison of a quantized model with the float one found."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from subbyte.errors import ConfigError, nearest
from subbyte.report.console import PlainConsole
from subbyte.report.doctor.figures import OpComparison
from subbyte.report.doctor.page import page
from subbyte.report.doctor.table import decibels, ops_table, percent
from subbyte.report.json_text import json_text

_FORMATS = (".json", ".html")


@dataclass(frozen=True)
class Comparison:
    """A quantized model against the float one, op by op; prints as a table.

    Args:
        ops: in the order they first ran.
        output_sqnr: of what the model returns, in decibels.
        not_finite: values of that which are NaN or infinite, in the float model and in the quantized one.
        first_jump: of the ops that stand out, because they add at least 1 % error or four times as much as the median
            op of their type, the first that adds at least half as much as the worst of them; an op that gives NaN or
            infinity is one in any case. None where no op stands out.
        unreached: ops that no batch came to.
        samples: how many were compared.
        moved_by: recovery methods that moved scales from one op to another, or turned what ops give: then figures of
            single ops compare different things, no op stands out, and what the model returns is what counts.
    """

    ops: tuple[OpComparison, ...]
    output_sqnr: float
    not_finite: tuple[int, int] = (0, 0)
    first_jump: str | None = None
    unreached: tuple[str, ...] = field(default=())
    samples: int = 0
    moved_by: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> OpComparison:
        """The op of that name.

        Raises:
            ConfigError: there is none.
        """
        ops = {op.name: op for op in self.ops}
        if name not in ops:
            raise ConfigError(f"the comparison has no op {name!r}{nearest(name, ops)}; print it to see them")
        return ops[name]

    def worst(self, count: int = 5) -> list[OpComparison]:
        """The ops that add most error themselves, the worst first; those that break come before."""
        quantized = [op for op in self.ops if op.own_error is not None or op.breaks]
        return sorted(quantized, key=lambda op: (op.breaks, op.own_error or 0.0), reverse=True)[:count]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "output_sqnr": self.output_sqnr,
            "not_finite": list(self.not_finite),
            "first_jump": self.first_jump,
            "samples": self.samples,
            "unreached": list(self.unreached),
            "moved_by": list(self.moved_by),
            "ops": [op.to_dict() for op in self.ops],
        }

    def conclusion(self) -> list[str]:
        """What is to be said of the whole model, in sentences."""
        return [self._of_the_output(), *self._of_the_jump(), *self._of_what_is_left_out()]

    def save(self, path: str | Path) -> None:
        """Write it as `.json` (what is not finite as text, as in `"Infinity"`), or as `.html`, a page without network.

        Raises:
            ConfigError: the name ends otherwise, or the file cannot be written.
        """
        path = Path(path)
        self.check_path(path)
        html = path.suffix == ".html"
        text = page(self.ops, self.first_jump, self.conclusion()) if html else json_text(self.to_dict(), indent=2)
        try:
            path.write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}") from error

    @staticmethod
    def check_path(path: Path) -> None:
        """Refuse a path that `save` would refuse.

        Raises:
            ConfigError: the name ends otherwise than in .json or .html, or there is no such folder.
        """
        if path.suffix not in _FORMATS:
            raise ConfigError(f"{path}: a comparison is saved as {' or '.join(_FORMATS)}")
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.parent}; create it first")

    def __rich__(self) -> Group:
        return Group(ops_table(self.ops, self.first_jump), *map(Text, self.conclusion()))

    def __str__(self) -> str:
        console = PlainConsole(width=180, no_color=True)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def _of_the_output(self) -> str:
        said = f"the model's output: {decibels(self.output_sqnr)} dB over {self.samples:,} samples"
        wrong = f"; {self.not_finite[1]:,} values are NaN or infinite (float: {self.not_finite[0]:,})"
        return said + (wrong if self.not_finite[1] else "")

    def _of_the_jump(self) -> list[str]:
        if self.moved_by:
            return [
                f"{' and '.join(self.moved_by)} changed what ops give to each other: single ops cannot be compared, "
                "what the model gives can; to examine ops, compare the model quantized without"
            ]
        if self.first_jump is None:
            return ["no op adds much more error than the others"]
        op = self[self.first_jump]
        place = op.name or f"the model itself ({op.type})"
        said = f"error first jumps at {place}, which adds {percent(op.own_error)} of its output itself"
        return [said, *(f"  {remedy}" for remedy in op.remedies)]

    def _of_what_is_left_out(self) -> list[str]:
        unmet = ", ".join(op.name for op in self.ops if op.unmet)
        said = [f"the models took different ways at {unmet}: calls without counterpart are left out"] if unmet else []
        return said + ([f"reached by no batch: {', '.join(self.unreached)}"] if self.unreached else [])
