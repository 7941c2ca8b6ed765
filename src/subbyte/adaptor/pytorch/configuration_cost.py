"""What a configuration costs: bytes of the converted model, bit operations of a forward."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from subbyte.adaptor.pytorch.graph import Graph, Op
from subbyte.adaptor.pytorch.modules import RecurrentHandler, handler_of
from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.reads import quantized_activation, reads
from subbyte.adaptor.pytorch.weight import folds_first
from subbyte.adaptor.pytorch.weight_ranges import WeightRanges
from subbyte.dtypes import DataType, dtype
from subbyte.numerics import packed_size
from subbyte.spec import OpConfig, TensorSpec, TuneConfig

_FLOAT_BITS = 32


@dataclass(frozen=True)
class _Share:
    """What an op contributes to the size of the converted model.

    Args:
        added: bytes, by what they are of: what several ops share counts once.
        dropped: bytes of float tensors that it no longer needs, by their id.
        kept: the ids of those that it does.
    """

    added: Mapping[Any, int] = field(default_factory=dict)
    dropped: Mapping[int, int] = field(default_factory=dict)
    kept: frozenset[int] = frozenset()


class ConfigurationCost:
    """Of one model, whose graph says what is quantized where; neither its graph nor its weights may change.

    Args:
        model: that holds the float weights.
        graph: its ops.
        ranges: of its weights.
        float_bytes: of all its parameters and buffers.
    """

    def __init__(self, model: nn.Module, graph: Graph, ranges: WeightRanges, float_bytes: int) -> None:
        self._model = model
        self._graph = graph
        self._ranges = ranges
        self._float_bytes = float_bytes
        self._shares: dict[tuple[str, OpConfig], _Share] = {}
        self._quantizer_bytes = sum(x.nbytes for x in Quantizer("", TensorSpec(dtype("int8"))).buffers())

    def size(self, config: TuneConfig) -> int:
        """Bytes of the converted model's parameters and buffers."""
        added: dict[Any, int] = {}
        dropped: dict[int, int] = {}
        kept: set[int] = set()
        for op in self._graph:
            share = self._share(op, config.op.get(op.info.key, OpConfig()))
            added.update(share.added)
            dropped.update(share.dropped)
            kept.update(share.kept)
        saved = sum(nbytes for tensor, nbytes in dropped.items() if tensor not in kept)
        return self._float_bytes - saved + sum(added.values())

    def bops(self, config: TuneConfig) -> int:
        """Of each op its multiply-accumulates, times the bits of one factor, times those of the other."""
        return sum(op.macs * self._product_of_bits(op, config.op.get(op.info.key, OpConfig())) for op in self._graph)

    def _share(self, op: Op, config: OpConfig) -> _Share:
        if (op.name, config) not in self._shares:
            self._shares[op.name, config] = self._counted(op, config)
        return self._shares[op.name, config]

    def _counted(self, op: Op, config: OpConfig) -> _Share:
        added = dict.fromkeys(self._quantizers(op, config), self._quantizer_bytes)
        if op.kind != "module":
            return _Share(added)
        weights = self._ranges.weights(op.name)
        if config.half is not None:
            return self._in_half(op, weights, config.half)
        if config.weight is None or config.weight.is_float:
            return _Share(added, kept=frozenset(map(id, weights)))
        dropped = {id(tensor): tensor.nbytes for tensor in (*weights, *self._of_norm(op))}
        return _Share({**added, **dict(self._packed(op, config.weight, weights))}, dropped)

    def _in_half(self, op: Op, weights: Iterable[Tensor], half: DataType) -> _Share:
        module = self._model.get_submodule(op.name)
        tensors = {id(tensor): tensor for tensor in (*weights, *module.parameters(recurse=False))}
        cast = {key: tensor for key, tensor in tensors.items() if tensor.dtype != half.torch_dtype}
        return _Share(
            {(key, half): tensor.numel() * half.bits // 8 for key, tensor in cast.items()},
            {key: tensor.nbytes for key, tensor in cast.items()},
            frozenset(tensors.keys() - cast.keys()),
        )

    def _product_of_bits(self, op: Op, config: OpConfig) -> int:
        activation = _bits(config.activation if config.quant_mode != "weight_only" else None)
        return activation * (_bits(config.weight) if op.role == "weighted" else activation)

    def _packed(self, op: Op, spec: TensorSpec, weights: Iterable[Tensor]) -> Iterator[tuple[Any, int]]:
        """The packed weights of an op, and what is left of its BatchNorm."""
        for weight, params in zip(weights, self._ranges.of(op.name, spec), strict=True):
            stored = [x.nbytes for x in (params.scale, params.zero_point) if x is not None]
            own = op.name if op.norm and folds_first(spec) else ""
            yield (id(weight), spec, own), packed_size(weight.numel(), spec.dtype.bits) + sum(stored)
        if op.norm:
            norm: Any = self._model.get_submodule(op.norm)
            bias: Any = getattr(self._model.get_submodule(op.name), "bias", None)
            of_channels = _FLOAT_BITS // 8 * int(norm.num_features)
            yield (op.name, "bias"), of_channels - (0 if bias is None else int(bias.nbytes))
            yield (op.name, "factor"), 0 if folds_first(spec) else of_channels

    def _quantizers(self, op: Op, config: OpConfig) -> Iterator[str]:
        """The keys of those at the inputs of an op: ops that read the same value by the same spec share one."""
        module = self._model.get_submodule(op.name) if op.kind == "module" else None
        handler = None if module is None else handler_of(module)
        if isinstance(handler, RecurrentHandler) and quantized_activation(config) is not None:
            yield from (f"{op.name}:{name}" for name in handler.matrix_names(module))
        elif not isinstance(handler, RecurrentHandler):
            yield from (read.key(op.name, config) for read in reads(op, config))

    def _of_norm(self, op: Op) -> Iterator[Tensor]:
        """What a BatchNorm that an op absorbs no longer holds."""
        if op.norm:
            norm = self._model.get_submodule(op.norm)
            yield from (*norm.parameters(recurse=False), *norm.buffers(recurse=False))


def _bits(spec: TensorSpec | None) -> int:
    return _FLOAT_BITS if spec is None else spec.dtype.bits
