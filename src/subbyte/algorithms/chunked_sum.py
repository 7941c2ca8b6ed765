"""Sums over the columns of a stream of tensors, the same bit for bit however the stream is cut into batches."""

from collections.abc import Callable

import torch
from torch import Tensor

Place = tuple[int, ...]


class ChunkedSum:
    """The sum of a function over chunks of columns.

    A floating-point sum depends on how its terms are grouped. Columns are therefore collected into chunks of a fixed
    size, so that equal columns give equal sums, whichever batches they came in. The calls that a module gets at several
    places of one forward are summed apart, as their order in the stream depends on the batches.

    Args:
        function: from a chunk [..., columns] to a tensor of any shape that does not depend on the number of columns.
        chunk: the number of columns in a chunk. Up to as many are kept.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], chunk: int = 4096) -> None:
        self.count = 0
        self._chunk = chunk
        self._function = function
        self._sums: dict[Place, Tensor] = {}
        self._waiting: dict[Place, Tensor] = {}

    def add(self, columns: Tensor, place: Place = ()) -> None:
        """Add the columns of a call.

        Args:
            columns: [..., columns].
            place: of the call in its forward.
        """
        self.count += columns.shape[-1]
        if place in self._waiting:
            columns = torch.cat([self._waiting[place], columns], -1)
        whole = columns.shape[-1] // self._chunk * self._chunk
        for chunk in columns[..., :whole].split(self._chunk, -1) if whole else ():
            self._sums[place] = self._added(place, chunk)
        self._waiting[place] = columns[..., whole:].clone()

    def total(self) -> Tensor | None:
        """Return the sum, fp64; None if there was no column."""
        found: Tensor | None = None
        for place in sorted(self._waiting):
            rest = self._waiting[place]
            part = self._added(place, rest) if rest.shape[-1] else self._sums.get(place)
            if part is not None:
                found = part if found is None else found + part
        return found

    def _added(self, place: Place, chunk: Tensor) -> Tensor:
        part = self._function(chunk.contiguous()).double()
        return self._sums[place] + part if place in self._sums else part
