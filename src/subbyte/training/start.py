"""The scales that learning begins with."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from subbyte.adaptor.pytorch.computed_weights import Sample, standing_in
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer, Quantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.adaptor.pytorch.unchanged import unchanged
from subbyte.calibration import algorithm_of, calibrate_statistics
from subbyte.spec import QuantParams


def observed_params(
    model: nn.Module, quantizers: Sequence[ActivationQuantizer], sample: Sample, algorithm: str
) -> dict[Quantizer, QuantParams]:
    """What an algorithm finds for quantizers of activations, which themselves stay as they are.

    Args:
        model: prepared; left as it was.
        quantizers: of it, calibrated by whatever algorithm.
        sample: the calibration data, and the weights that it meets.
        algorithm: by name.

    Raises:
        ConfigError: the algorithm has no meaning for the type of one.
    """
    run = state_of(model).run
    specs = {quantizer: replace(quantizer.spec, algorithm=algorithm) for quantizer in quantizers}
    kept = {quantizer: quantizer.statistics for quantizer in quantizers}
    for quantizer, spec in specs.items():
        quantizer.statistics = algorithm_of(spec).statistics(spec)
    phase, run.phase = run.phase, "observe"
    try:
        for batch in sample.batches:
            with unchanged(model), standing_in(sample.weights):
                batch.copied().run(model)
        return {
            quantizer: calibrate_statistics(quantizer.statistics, spec, quantizer.observed_shape)
            for quantizer, spec in specs.items()
            if quantizer.statistics is not None and quantizer.statistics.minimum is not None
        }
    finally:
        run.phase = phase
        for quantizer, statistics in kept.items():
            quantizer.statistics = statistics
