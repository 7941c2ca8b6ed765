"""rotate: outliers of the residual stream spread over all channels by rotations inside of the weights."""

from typing import ClassVar

from torch import Generator, Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.adaptor.pytorch.prepared.residual_stream import (
    Heads,
    ResidualStream,
    attention_heads,
    commutes,
    residual_streams,
)
from subbyte.adaptor.pytorch.prepared.turning import fold_norm, turn_input, turn_output
from subbyte.algorithms.float_function import same_function
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.orthogonal import keeping_mean, spreading
from subbyte.algorithms.registry import register_algorithm
from subbyte.errors import RecoveryError


@register_algorithm("rotate")
class Rotate(RecoveryMethod):
    """Rotation of a pre-norm transformer (QuaRot, Ashkboos et al., 2024): no float output changes, nothing is added.

    All that is written into the residual stream is turned by one orthogonal matrix Q, and all that reads it turned
    back: `W_out <- Q^T W_out`, `W_in <- W_in diag(g) Q`, g the weight of the norm between, which becomes 1. Behind
    RMSNorm Q is a randomized Hadamard matrix (a random rotation for a size that has none); behind LayerNorm, which
    subtracts the mean, a random rotation that keeps the mean, and so passes it. The heads of what attention mixes are
    turned too, each by a matrix of its own between v_proj and o_proj. Weights that embedding and head share become two.

    Has no meaning for post-norm models such as BERT, for convolutional networks, and where the stream is returned; with
    `unsupported='skip'` the heads are turned there, if there are any.

    Args:
        heads: whether the heads are turned.
    """

    stage: ClassVar[Stage] = Stage.FLOAT

    heads: bool = True

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        model.untie()
        found = list(residual_streams(model.model, model.flow))
        streams = [stream for stream in found if not stream.obstacle and stream.norms]
        if not streams and self.unsupported == "error":
            why = next((f": {stream.obstacle}" for stream in found if stream.obstacle), "")
            raise RecoveryError(
                f"recovery method 'rotate' has no meaning for this model, as it has no residual stream that can be "
                f"turned{why}; leave the method out, or pass over that with {{'rotate': {{'unsupported': 'skip'}}}}"
            )
        heads = list(attention_heads(model.flow)) if self.heads else []
        with same_function(model, self.name):
            for stream in streams:
                _turn_stream(model, stream, generator)
            for each in heads:
                _turn_heads(model, each, generator)
        model.recalibrate()


def _turn_stream(model: PreparedModel, stream: ResidualStream, generator: Generator) -> None:
    module = model.model.get_submodule
    rotation = _rotation(model, stream, generator)
    for norm, readers in stream.norms.items():
        fold_norm(module(norm), [module(name) for name in readers])
    for name in stream.writers:
        turn_output(module(name), rotation)
    for name in (*stream.readers, *(name for readers in stream.norms.values() for name in readers)):
        turn_input(module(name), rotation)


def _rotation(model: PreparedModel, stream: ResidualStream, generator: Generator) -> Tensor:
    """One that every norm of the stream passes.

    Raises:
        RecoveryError: there is a norm that passes none.
    """
    norms = {name: model.model.get_submodule(name) for name in stream.norms}
    for rotation in (spreading(stream.size, generator), keeping_mean(stream.size, generator)):
        stopping = [name for name, norm in norms.items() if not commutes(norm, rotation)]
        if not stopping:
            return rotation
    raise RecoveryError(
        f"recovery method 'rotate' has no meaning for this model: no rotation passes its norm {stopping[0]!r}; leave "
        "the method out"
    )


def _turn_heads(model: PreparedModel, heads: Heads, generator: Generator) -> None:
    for index, rows in enumerate(heads.rows):
        rotation = spreading(len(rows), generator)
        turn_output(model.model.get_submodule(heads.source), rotation, rows)
        for name, runs in heads.readers.items():
            for columns in runs[index]:
                turn_input(model.model.get_submodule(name), rotation, columns)
