"""The scales that learning begins with."""

from collections.abc import Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from subbyte.adaptor.pytorch.computed_weights import Sample, standing_in
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer, Quantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.adaptor.pytorch.unchanged import unchanged
from subbyte.calibration import algorithm_of, calibrate_statistics
from subbyte.spec import QuantParams, TensorSpec


def untrained_norms(model: nn.Module) -> list[nn.Module]:
    """The BatchNorms whose running statistics are those that they were made with."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [norm for norm in norms if norm.num_batches_tracked is not None and _is_untrained(norm)]


def _is_untrained(norm: _BatchNorm) -> bool:
    # Weights that come of another framework, or of an old file, have statistics and no count.
    mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    return not int(norm.get_buffer("num_batches_tracked")) and not bool(mean.any()) and bool((variance == 1).all())


def observed_params(
    model: nn.Module, specs: Mapping[ActivationQuantizer, TensorSpec], sample: Sample
) -> dict[Quantizer, QuantParams]:
    """What is found for quantizers of activations, which themselves stay as they are.

    BatchNorms whose running statistics no batch has touched yet use those of each batch, as they will in training: with
    the statistics that they were made with activations are of quite another size.

    Args:
        model: prepared; left as it was.
        specs: of quantizers of it, each with the algorithm to find its range by.
        sample: the calibration data, and the weights that it meets.

    Raises:
        ConfigError: the algorithm has no meaning for the type of one.
    """
    run = state_of(model).run
    kept = {quantizer: quantizer.statistics for quantizer in specs}
    norms = untrained_norms(model)
    for quantizer, spec in specs.items():
        quantizer.statistics = algorithm_of(spec).statistics(spec)
    phase, run.phase = run.phase, "observe"
    try:
        for batch in sample.batches:
            with unchanged(model), standing_in(sample.weights):
                for norm in norms if batch.samples > 1 else ():
                    norm.train()
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
