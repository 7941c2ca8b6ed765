"""The gradients that come with the library, one file each; they register themselves."""

from subbyte.training.gradients import (  # noqa: F401
    approx_sign,
    clipped,
    clipped_identity,
    dorefa,
    ewgs,
    ir_net,
    lsq,
    lsq_plus,
    pact,
    straight_through,
    swish_sign,
    trained_ternary,
    twn,
)
