"""Intel Neural Compressor 2."""

from neural_compressor import PostTrainingQuantConfig, quantization
from neural_compressor.config import AccuracyCriterion, TuningCriterion

from peers_tuning.problem import MAX_LOSS, Found, Problem

_LONG = 100_000  # seconds: with a timeout of 0 it ends with the first model that is good enough


def basic(problem: Problem) -> Found:
    """Its strategy `basic` from the first trial; at the level `auto` it would try another one before."""
    conf = PostTrainingQuantConfig(
        quant_level=1,
        accuracy_criterion=AccuracyCriterion(tolerable_loss=MAX_LOSS),
        tuning_criterion=TuningCriterion(
            strategy="basic", max_trials=problem.trials, timeout=_LONG, objective=problem.objective
        ),
    )
    found = quantization.fit(problem.model, conf, calib_dataloader=problem.calibration, eval_func=problem.evaluate)
    assert found is not None, "no model was good enough"
    return found.model, []


SEARCHES = {"basic": basic}
