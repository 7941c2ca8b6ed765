"""The charts of a search, as coordinates that the page draws."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from subbyte.report.pages import Scale, Tick, scale_of
from subbyte.report.tuning.ops import TunedOp
from subbyte.report.tuning.words import amount, compact, loss_text, objective_text
from subbyte.tuning import Trial, TuneResult, best_of, objective_of, pareto

WIDTH, HEIGHT, LEFT = 760, 260, 72
STEP = 26  # pixels for each op
_TIMES = 10  # the tolerable loss, up to which losses have room; what is beyond is drawn at the edge
_FLOAT_BITS = 32


@dataclass(frozen=True)
class Mark:
    """One trial: `met`, `unmet`, `best` or `failed`."""

    x: float
    y: float
    kind: str
    text: str


@dataclass(frozen=True)
class Line:
    """From point to point: a `front`, the `best` so far, or what may be at `most`."""

    kind: str
    points: tuple[tuple[float, float], ...]

    @property
    def path(self) -> str:
        """As an SVG polyline takes it."""
        return " ".join(f"{x},{y}" for x, y in self.points)


@dataclass(frozen=True)
class Chart:
    """Trials as points in a picture of `width` by `height` pixels, and a little below for the axis."""

    title: str
    across: str
    ticks: tuple[Tick, ...]
    places: tuple[tuple[float, str], ...]
    marks: tuple[Mark, ...]
    lines: tuple[Line, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT


def front_chart(result: TuneResult, objective: str) -> Chart:
    """Loss against an objective, all trials that did not fail, and the front."""
    usable = [trial for trial in result.trials if not trial.failed]
    budget = result.wanted.goal.budgets.get(objective)
    most = [] if budget is None else [budget]
    x = scale_of([*(trial.objectives[objective] for trial in usable), *most], LEFT, WIDTH - 20)
    y = _loss_scale(result)
    front = [(x(each.objectives[objective]), y(each.loss)) for each in pareto(result.trials, objective)]
    lines = [Line("front", _stairs(front)), _across(y(result.wanted.accuracy.max_loss))]
    lines += [Line("most", ((x(each), 10.0), (x(each), float(HEIGHT)))) for each in most]
    marks = (_mark(result, each, x(each.objectives[objective]), y(each.loss)) for each in usable)
    return Chart(
        f"Loss against {objective}", objective_of(objective).unit, _loss_ticks(result, y),
        tuple((x(value), compact(value)) for value in x.rounds()), tuple(marks), tuple(lines),
    )  # fmt: skip


def loss_history(result: TuneResult) -> Chart:
    """The loss of every trial by its number; those that failed at the upper edge."""
    x, y = _number_scale(result.trials), _loss_scale(result)
    marks = (_mark(result, each, x(each.number), 10.0 if each.failed else y(each.loss)) for each in result.trials)
    lines = (_across(y(result.wanted.accuracy.max_loss)),)
    return Chart("Loss of each trial", "trial", _loss_ticks(result, y), _numbers(x), tuple(marks), lines)


def cost_history(result: TuneResult) -> Chart:
    """What every trial costs, and the best so far."""
    trials = result.trials
    x = _number_scale(trials)
    y = scale_of([trial.cost for trial in trials], HEIGHT, 10)
    bests = [(trial.number, best_of(list(trials[: index + 1]))) for index, trial in enumerate(trials)]
    steps = [(x(number), y(best.cost)) for number, best in bests if best is not None]
    marks = (_mark(result, each, x(each.number), y(each.cost)) for each in trials)
    ticks = tuple(Tick(y(value), compact(value)) for value in y.rounds())
    return Chart("Cost of each trial", "trial", ticks, _numbers(x), tuple(marks), (Line("best", _stairs(steps)),))


@dataclass(frozen=True)
class Column:
    """One op in the map: cells for its weight and its inputs, and a bar as high as it has bytes."""

    x: float
    op: TunedOp
    cells: tuple[tuple[str, int], ...]
    bar: float


@dataclass(frozen=True)
class BitMap:
    """The network from left to right."""

    columns: tuple[Column, ...]
    left: int = LEFT
    step: int = STEP
    height: int = 140  # of all rows

    @property
    def width(self) -> int:
        return LEFT + STEP * max(len(self.columns), 1) + 40

    @property
    def below(self) -> int:
        """How many pixels the longest name takes, slanted."""
        return 24 + max((5 * len(column.op.name) for column in self.columns), default=0)


def bit_map(ops: Sequence[TunedOp]) -> BitMap:
    """Bits of weight and inputs, and bytes, of each op."""
    most = max((op.bytes for op in ops), default=0) or 1
    return BitMap(tuple(Column(LEFT + STEP * i, op, _cells(op), 60 * op.bytes / most) for i, op in enumerate(ops)))


def shade(bits: int) -> str:
    """A colour for a width: from red for one bit to blue for eight; grey for float."""
    return "#8a939c" if bits >= _FLOAT_BITS else f"hsl({min(bits - 1, 7) * 30} 55% 42%)"


def _cells(op: TunedOp) -> tuple[tuple[str, int], ...]:
    weight = () if op.weight_bits is None else (("weight", op.weight_bits),)
    return (*weight, ("input", op.activation_bits))


def _mark(result: TuneResult, trial: Trial, x: float, y: float) -> Mark:
    if trial.failed:
        return Mark(x, y, "failed", f"trial {trial.number} failed: {trial.problem}")
    kind = "best" if trial.number == result.best.number else "met" if trial.met else "unmet"
    metrics = ", ".join(f"{name} {value:.6g}" for name, value in trial.metrics.items())
    figures = ", ".join(f"{name} {objective_text(name, value)}" for name, value in trial.objectives.items())
    loss = loss_text(trial.loss, result.wanted.accuracy)
    return Mark(x, y, kind, f"trial {trial.number}: {metrics}, loss {loss}; {figures}")


def _loss_scale(result: TuneResult) -> Scale:
    losses = [trial.loss for trial in result.trials if not trial.failed]
    tolerable = result.wanted.accuracy.max_loss
    room = max(_TIMES * tolerable, 1.2 * min(losses, default=0.0))
    shown = losses if room <= 0 else [min(loss, room) for loss in losses]
    return scale_of([0.0, tolerable, *shown], HEIGHT, 10)


def _loss_ticks(result: TuneResult, scale: Scale) -> tuple[Tick, ...]:
    return tuple(Tick(scale(value), loss_text(value, result.wanted.accuracy)) for value in scale.rounds())


def _number_scale(trials: Sequence[Trial]) -> Scale:
    return Scale(-0.5, max(len(trials) - 0.5, 0.5), LEFT, WIDTH - 20)


def _numbers(scale: Scale) -> tuple[tuple[float, str], ...]:
    return tuple((scale(value), amount(value)) for value in scale.rounds() if float(value).is_integer())


def _across(y: float) -> Line:
    return Line("most", ((float(LEFT), y), (float(WIDTH), y)))


def _stairs(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Level from one point until the next."""
    steps: list[tuple[float, float]] = []
    for x, y in points:
        if steps:
            steps.append((x, steps[-1][1]))
        steps.append((x, y))
    return tuple(steps)
