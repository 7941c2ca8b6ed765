"""What configuration and tuning may ask of a framework."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from subbyte.spec import OpInfo, TuneConfig


class Adaptor(ABC):
    """The only interface that tuning sees."""

    @abstractmethod
    def operators(self, model: Any, data: Any = None) -> Sequence[OpInfo]:
        """The operators of a model that can be quantized, in the order they run."""

    @abstractmethod
    def query_fw_capability(self, model: Any, data: Any = None) -> dict[str, Any]:
        """`{'opwise': {(name, type): [allowed configurations]}, 'optypewise': {type: [...]}}`."""

    @abstractmethod
    def quantize(self, model: Any, tune_config: TuneConfig, data: Any = None) -> Any:
        """A quantized copy of the model, exactly as configured; the model itself is not changed."""
