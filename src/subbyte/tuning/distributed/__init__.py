"""Who tries the candidates: this process, several on one storage, or a Ray cluster."""

from subbyte.tuning.distributed.choice import distribution_of
from subbyte.tuning.distributed.executor import Distribution, Executor
from subbyte.tuning.distributed.local import Local
from subbyte.tuning.distributed.ray_cluster import Ray
from subbyte.tuning.distributed.shared import Shared

__all__ = ["Distribution", "Executor", "Local", "Ray", "Shared", "distribution_of"]
