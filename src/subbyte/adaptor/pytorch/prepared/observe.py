"""What the ops of a prepared model are given in float: looked at as it passes by, or a few samples kept."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from subbyte.adaptor.pytorch.prepared.model import PreparedModel

See = Callable[[Tensor], None]


def observe_inputs(model: PreparedModel, see: Mapping[str, See]) -> None:
    """Run all calibration data in float, and show the input of each call of some modules to a function.

    Args:
        model: with batches; left as it was.
        see: by the name of the module.
    """
    with model.phase("bypass"), _seen(model.model, see):
        for batch in model.batches:
            model.run(batch)


def sample_inputs(model: PreparedModel, names: Iterable[str], samples: int) -> dict[str, list[Tensor]]:
    """The inputs of all calls of some modules, in float, on the first samples of the calibration data.

    Args:
        model: with batches; left as it was.
        names: of the modules.
        samples: how many (a sequence is one).
    """
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    with model.phase("bypass"), _seen(model.model, {name: kept.append for name, kept in found.items()}):
        for batch in model.batches:
            if samples <= 0:
                break
            chosen = batch.first(samples)
            samples -= chosen.samples
            model.run(chosen)
    return found


@contextmanager
def _seen(model: nn.Module, see: Mapping[str, See]) -> Iterator[None]:
    def entering(look: See) -> Any:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            x = next(iter((*args, *kwargs.values())))
            look(x.detach().clone())  # a forward may write into its values

        return enter

    handles = [
        model.get_submodule(name).register_forward_pre_hook(entering(look), with_kwargs=True)
        for name, look in see.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
