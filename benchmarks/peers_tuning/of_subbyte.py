"""Ours, by the names of the other library and by our own."""

import subbyte
from peers_tuning.problem import MAX_LOSS, Found, Problem
from subbyte import AccuracyCriterion, PostTrainingQuantConfig, TuneResult, TuningCriterion, quantization

_LONG = 100_000  # seconds, as for the other library


def basic(problem: Problem) -> Found:
    """`fit`, as the other library is called."""
    conf = PostTrainingQuantConfig(
        accuracy_criterion=AccuracyCriterion(tolerable_loss=MAX_LOSS),
        tuning_criterion=TuningCriterion(
            strategy="basic", max_trials=problem.trials, timeout=_LONG, objective=problem.objective
        ),
    )
    found = quantization.fit(problem.model, conf, calib_dataloader=problem.calibration, eval_func=problem.evaluate)
    return found, _overhead(subbyte.tuning_result(found))


def sensitivity(problem: Problem) -> Found:
    """`tune`, with the strategy that is its default."""
    result = subbyte.tune(
        problem.model, [images for images, _ in problem.calibration], problem.evaluate,
        max_loss=MAX_LOSS, objective=problem.objective, max_trials=problem.trials,
    )  # fmt: skip
    return result.model, _overhead(result)


def _overhead(result: TuneResult) -> list[float]:
    return [trial.seconds - trial.evaluation for trial in result.trials]


SEARCHES = {"basic": basic, "sensitivity": sensitivity}
