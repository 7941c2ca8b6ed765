"""The gradients that come with the library, one file each; they register themselves."""

from subbyte.training.gradients import clipped, lsq, straight_through  # noqa: F401
