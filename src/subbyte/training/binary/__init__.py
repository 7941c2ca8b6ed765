"""What networks of one bit need beside gradients: modules, surgery, an optimizer, a metric."""

from subbyte.training.binary.bop import Bop
from subbyte.training.binary.flips import FlipRatio
from subbyte.training.binary.input_magnitude import InputMagnitude, scale_by_input
from subbyte.training.binary.rprelu import RPReLU
from subbyte.training.binary.shift import LearnableShift
from subbyte.training.binary.skip import Skip, skip_per_convolution
from subbyte.training.binary.weights import binary_weights

__all__ = [
    "Bop",
    "FlipRatio",
    "InputMagnitude",
    "LearnableShift",
    "RPReLU",
    "Skip",
    "binary_weights",
    "scale_by_input",
    "skip_per_convolution",
]
