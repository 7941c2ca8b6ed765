"""Which quantizers stand at the inputs of an op, for each place from which it is called."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.call_site import call_site, unseen
from subbyte.adaptor.pytorch.phase import Run
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer, InputQuantizer, checking_learned
from subbyte.errors import UnseenOpError
from subbyte.numerics import Learned, learned_sum

MASKED = -1e4  # exp of this is zero beside any score; masks are this, -1e9, the least float, or -inf
Slots = tuple[InputQuantizer | None, ...]


@dataclass
class InputQuantizers:
    """The quantizers of a module's inputs: the same at every call (dynamic, or none), or one set for each place.

    Args:
        name: of the op.
        always: used whatever the place.
        by_site: used at that place; an unknown place is refused.
        run: what the model's forward is for.
    """

    name: str
    run: Run
    always: Slots | None = None
    by_site: dict[str, Slots] = field(default_factory=dict)

    def here(self) -> Slots:
        """Those of the call being made.

        Raises:
            UnseenOpError: no recorded forward called the op from here.
        """
        if self.run.awaits_first and self.run.quantizes:
            raise UnseenOpError(
                f"op {self.name!r} was called before the model itself, which was quantized without data: its functions "
                "are found in its first forward. Call the model once as a whole, or quantize with one batch of data"
            )
        if self.always is not None:
            return self.always
        if self.run.phase == "bypass":
            return ()
        if torch.compiler.is_compiling():
            return self._only()
        site = call_site()
        if not site and len(self.by_site) == 1:  # the user calls the layer itself
            return self._only()
        slots = self.by_site.get(site)
        if slots is None:
            raise UnseenOpError(f"this call of op {self.name!r} {unseen()}")
        return slots

    def _only(self) -> Slots:
        if len(self.by_site) != 1:
            raise UnseenOpError(
                f"op {self.name!r} is called from {len(self.by_site)} places, which torch.compile cannot tell "
                "apart; compile around it, or run this model without torch.compile"
            )
        return next(iter(self.by_site.values()))

    def __iter__(self) -> Iterator[InputQuantizer]:
        for slots in (self.always or (), *self.by_site.values()):
            yield from (slot for slot in slots if slot is not None)


def quantized(x: Tensor, quantizer: InputQuantizer | None) -> Tensor:
    """The value of x that an op computes with: quantized, or x itself while observing or where nothing stands."""
    if quantizer is None or not is_active(quantizer, x):
        return x
    return quantizer.forward(x)  # it has no hooks to run; snapped, beside this, would run none either


def quantized_sum(x: Tensor, y: Tensor, slots: Slots) -> Tensor:
    """The sum of two quantized values, in one pass where that can be."""
    first, second = map(learned_value, (x, y), slots)
    if first is not None and second is not None and first.joins(second):
        with checking_learned(*filter(None, slots)):
            return learned_sum(first, second)
    return quantized(x, slots[0]) + quantized(y, slots[1])


def learned_value(x: Tensor, quantizer: InputQuantizer | None) -> Learned | None:
    """What `quantized` computes in training, where fused kernels can take it over; else None."""
    if not (isinstance(quantizer, ActivationQuantizer) and quantizer.training and quantizer.run.quantizes):
        return None
    quantizer.check_calibrated()
    return quantizer.learned_value(x)


def quantized_scores(x: Tensor, quantizer: InputQuantizer | None) -> Tensor:
    """`quantized` of what a softmax reads: masked positions, far below any score, stay: the range is without them."""
    masked = x <= MASKED
    return torch.where(masked, x, quantized(torch.where(masked, 0.0, x), quantizer))


def snapped(x: Tensor, quantizer: InputQuantizer | None) -> tuple[Tensor, Tensor | None]:
    """Grid values of x and their scale; x itself and None while observing or where nothing stands."""
    if quantizer is None or not is_active(quantizer, x):
        return x, None
    return quantizer.snap(x)


def is_active(quantizer: InputQuantizer, x: Tensor) -> bool:
    """Whether x is quantized now; while calibrating it is only observed."""
    if not quantizer.run.quantizes:
        quantizer.note(x)
        return False
    quantizer.check_calibrated()
    return True
