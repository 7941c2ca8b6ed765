"""What the ops that run on kernels have in common."""

from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.quantizer import InputQuantizer


class KernelModule(ConvertedWeighted):
    """A converted op that runs on packed codes: what modules become by `use_kernels`."""

    @classmethod
    def serves(cls, module: ConvertedWeighted) -> bool:
        """Whether this class runs such an op."""
        raise NotImplementedError

    @classmethod
    def runs(cls, module: ConvertedWeighted, quantizer: InputQuantizer | None) -> bool:
        """Whether such an op runs on codes where its input has this quantizer; else it runs as it would without."""
        raise NotImplementedError

    def lay_out(self) -> None:
        """Bring the weight into the order that the kernels read; called once, on a module that just became one."""
        raise NotImplementedError
