"""The gradients that come with the library, one file each; they register themselves."""

from subbyte.training.gradients import clipped, dorefa, ewgs, lsq, lsq_plus, pact, straight_through  # noqa: F401
