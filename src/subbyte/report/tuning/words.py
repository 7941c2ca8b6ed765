"""How a search's figures are written."""

from subbyte.tuning import Accuracy, TuneResult, objective_of

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))


def amount(value: float) -> str:
    """`12,345`; `0.00123`."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:,.4g}"


def compact(value: float) -> str:
    """`12.3k`, for axes."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            unit = 1e3 if prefix == "k" else size
            return f"{value / unit:.4g}{prefix}"
    return f"{value:.4g}"


def loss_text(loss: float, accuracy: Accuracy) -> str:
    """A share in %, or as many of the metric's own units."""
    return f"{100 * loss:.3g} %" if accuracy.criterion == "relative" else f"{loss:.4g}"


def found_loss_text(result: TuneResult) -> str:
    """Return the loss of the best trial: `0.3 % [-0.4 %, 0.9 %]` with its bounds, or `about 0.9 %` of an estimate."""
    accuracy, interval = result.wanted.accuracy, result.interval
    loss = loss_text(result.loss, accuracy)
    if interval is None:
        return f"about {loss}" if is_estimated(result) else loss
    return f"{loss} [{loss_text(interval.low, accuracy)}, {loss_text(interval.high, accuracy)}]"


def is_estimated(result: TuneResult) -> bool:
    """Return whether the loss of the best trial is an estimate; one that was measured as too much needs none."""
    best = result.best
    return best.estimate is not None and best.confirmed is None and (best.met or best.estimate > best.loss)


def objective_text(name: str, value: float) -> str:
    """`12,345 bytes`."""
    return f"{amount(value)} {objective_of(name).unit}"


def duration(seconds: float) -> str:
    """`8.1 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def error_text(error: float | None) -> str:
    """Noise over signal in %; nothing where it was not measured."""
    return "" if error is None else f"{100 * error:.3g} %"


def perturbation_text(perturbation: float | None) -> str:
    """Three digits; nothing where there is none."""
    return "" if perturbation is None else f"{perturbation:.3g}"
