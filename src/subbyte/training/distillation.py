"""Distillation: the quantized network learns from a float one beside the labels."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subbyte.adaptor.pytorch.modes import evaluating
from subbyte.adaptor.pytorch.modules import WeightedHandler, handler_of
from subbyte.adaptor.pytorch.prepared.blocks import find_blocks
from subbyte.errors import ConfigError, ModelError, listing, nearest
from subbyte.training.logits import check_output, logits_of, only_tensor

TERMS = ("logits", "blocks")
WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


@dataclass(frozen=True)
class Distillation:
    """What a network in training is to have in common with a teacher, as terms to add to its loss.

        logits * T^2 * KL(softmax(teacher / T) || softmax(student / T)) + blocks * mean over pairs of |s - t|^2

    The first is Hinton et al., 2015 (Distilling the Knowledge in a Neural Network), averaged over predictions. In the
    second s and t are the outputs of a block for one sample, each divided by its length: hints (Romero et al., 2015,
    FitNets) whose size is taken out, as attention transfer does (Zagoruyko & Komodakis, 2017); averaged over samples.

    It holds no part of the student and leaves nothing in it: its state_dict, copies of it and DistributedDataParallel
    are as without.

    Args:
        teacher: the float model, or another for the same task; not changed, and run in eval() without gradients.
        logits: weight of the first term; 0 leaves it out.
        blocks: weight of the second.
        temperature: T; higher says more of the classes that are not the likeliest.
        axis: of the logits that classes lie along.
        pairs: whose outputs are compared: modules of the student, and which of the teacher each goes with. Left out,
            the blocks (the largest parts with at most eight weighted ops) of a teacher that has the same ones.
        output: the key or the index of the logits in what student and teacher return. Left out: the tensor that they
            return, what is named `logits`, or the one float tensor of two axes or more.

    Raises:
        ConfigError: a value of the wrong type, a number out of its range, or both terms are left out.
        ModelError: the teacher is no module.
    """

    teacher: nn.Module
    logits: float = 1.0
    blocks: float = 0.0
    temperature: float = 4.0
    axis: int = -1
    pairs: Mapping[str, str] | None = None
    output: str | int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.teacher, nn.Module):
            raise ModelError(f"distillation: the teacher is a torch.nn.Module, not a {type(self.teacher).__name__}")
        for name in ("logits", "blocks", "temperature"):
            _check_number(name, getattr(self, name))
        if not isinstance(self.axis, int) or isinstance(self.axis, bool):
            raise ConfigError(f"distillation: axis is a whole number, not {self.axis!r}")
        check_output(self.output)
        if min(self.logits, self.blocks) < 0 or self.logits + self.blocks <= 0:
            raise ConfigError(
                f"distillation: logits and blocks are weights of 0 or more, one above 0; "
                f"not {self.logits!r} and {self.blocks!r}"
            )
        if not self.temperature > 0:
            raise ConfigError(f"distillation: temperature is above 0, not {self.temperature!r}")
        if self.pairs is not None and not _is_names(self.pairs):
            raise ConfigError(
                "distillation: pairs are {'module of the student': 'module of the teacher'}, not " + repr(self.pairs)
            )
        if self.pairs is not None and not (self.blocks and self.pairs):
            raise ConfigError(
                "distillation: pairs name modules whose outputs are compared; give blocks a weight above 0"
            )

    @classmethod
    def of(cls, asked: Any, teacher: nn.Module) -> "Distillation":
        """Read `"logits"`, `"blocks"`, `"logits+blocks"`, or a mapping of the fields.

        Raises:
            ConfigError: it is none of these.
        """
        if isinstance(asked, str):
            asked = {"logits": 0.0} | dict.fromkeys(asked.split("+"), 1.0)
            known: Sequence[str] = TERMS
        elif isinstance(asked, Mapping):
            known = [name for name in cls.__dataclass_fields__ if name != "teacher"]
        else:
            raise ConfigError(f"distillation: 'logits', 'blocks', 'logits+blocks' or a mapping, not {asked!r}")
        for key in (key for key in asked if key not in known):
            raise ConfigError(
                f"distillation: {key!r} is unknown{nearest(str(key), known)} (there are: {listing(known)})"
            )
        return cls(teacher, **asked)

    def __call__(self, model: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
        """Run the student and the teacher.

        Args:
            model: the student; it may be wrapped, as in DistributedDataParallel.
            args, kwargs: inputs of both.

        Returns:
            the student's output, and what to add to its loss, [] in fp32.

        Raises:
            ConfigError: which output the logits are has to be said, or what was said is not there.
            ModelError: student and teacher do not fit each other.
        """
        student = model.module if isinstance(model, WRAPPERS) else model
        pairs = self._pairs(student) if self.blocks else {}
        with outputs_of(student, list(pairs)) as of_student:
            output = model(*args, **kwargs)
        with evaluating(self.teacher), torch.no_grad(), outputs_of(self.teacher, list(pairs.values())) as of_teacher:
            wanted = self.teacher(*args, **kwargs)
        terms = []
        if self.logits:
            terms.append(
                self.logits * self._of_logits(self._logits(output, "student"), self._logits(wanted, "teacher"))
            )
        if self.blocks:
            each = [
                of_blocks(f"{own!r} and {other!r}", of_student[own], of_teacher[other]) for own, other in pairs.items()
            ]
            if torch.is_grad_enabled():
                _check_learns(student, dict(zip(pairs, each, strict=True)))
            terms.append(self.blocks * torch.stack(each).mean())
        return output, torch.stack(terms).sum()

    def _logits(self, output: Any, whose: str) -> Tensor:
        return logits_of(output, self.output, whose)

    def _of_logits(self, student: Tensor, teacher: Tensor) -> Tensor:
        if student.shape != teacher.shape:
            raise ModelError(
                f"distillation: the student gives logits of shape {tuple(student.shape)} and the teacher of "
                f"{tuple(teacher.shape)}; both must be for the same classes"
            )
        if not -student.ndim <= self.axis < student.ndim:
            raise ConfigError(f"distillation: logits of shape {tuple(student.shape)} have no axis {self.axis}")
        ours, theirs = (
            (each.float() / self.temperature).log_softmax(self.axis).movedim(self.axis, -1).flatten(0, -2)
            for each in (student, teacher)
        )
        return self.temperature**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)

    def _pairs(self, student: nn.Module) -> Mapping[str, str]:
        if "_orig_mod" in student._modules or student._compiled_call_impl is not None:
            raise ModelError(
                "distillation: the student is compiled (torch.compile), where outputs of blocks are not seen; distil "
                "logits alone, or train it uncompiled"
            )
        if self.pairs is None:
            return self._same_blocks(student)
        for whose, model, chosen in (("student", student, self.pairs), ("teacher", self.teacher, self.pairs.values())):
            known = dict(model.named_modules())
            for name in (name for name in chosen if name not in known):
                raise ModelError(f"distillation: pairs: the {whose} has no module {name!r}{nearest(name, known)}")
        return self.pairs

    def _same_blocks(self, student: nn.Module) -> Mapping[str, str]:
        own, others = blocks_of(student), blocks_of(self.teacher)
        if own != others or not own:
            raise ModelError(
                f"distillation: the blocks of the student ({listing(own)}) and of the teacher ({listing(others)}) are "
                "not the same, so it is not known which go together; say it: "
                "pairs={'module of the student': 'module of the teacher'}"
            )
        return {name: name for name in own}


def blocks_of(model: nn.Module) -> list[str]:
    """The names of the blocks of a float model."""
    ops = {name for name, module in model.named_modules() if isinstance(handler_of(module), WeightedHandler)}
    return [name for name in find_blocks(model, ops) if name]


@contextmanager
def outputs_of(model: nn.Module, names: list[str]) -> Iterator[dict[str, list[Tensor]]]:
    """What modules give meanwhile, call by call, by name; hooks that are gone afterwards see it."""
    found: dict[str, list[Tensor]] = {name: [] for name in names}

    def seeing(name: str) -> Any:
        return lambda module, args, output: found[name].append(only_tensor(output, name))

    handles = [model.get_submodule(name).register_forward_hook(seeing(name)) for name in found]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def of_blocks(where: str, student: list[Tensor], teacher: list[Tensor]) -> Tensor:
    """|s / |s| - t / |t||^2, averaged over samples and calls.

    Raises:
        ModelError: they are called differently often, or give other shapes.
    """
    if len(student) != len(teacher) or not student:
        raise ModelError(
            f"distillation: {where} are called {len(student)} and {len(teacher)} times in a forward; choose other pairs"
        )
    terms = []
    for own, other in zip(student, teacher, strict=True):
        if own.shape != other.shape:
            raise ModelError(
                f"distillation: {where} give shapes {tuple(own.shape)} and {tuple(other.shape)}, which cannot be "
                "compared; choose other pairs"
            )
        ours, theirs = (F.normalize(each.float().flatten(1), dim=1) for each in (own, other))
        terms.append((ours - theirs).square().sum(1).mean())
    return torch.stack(terms).mean()


def _check_learns(student: nn.Module, terms: Mapping[str, Tensor]) -> None:
    """Refuse a block that is to learn and whose output has no gradient.

    Raises:
        ModelError: such a one.
    """
    for name, term in terms.items():
        block = student.get_submodule(name)
        if block.training and not term.requires_grad and any(each.requires_grad for each in block.parameters()):
            raise ModelError(
                f"distillation: what {name!r} gives has no gradient, so that nothing would be learned of it: it is run "
                "without gradients, as in torch.utils.checkpoint with use_reentrant=True (take use_reentrant=False), "
                "or detached"
            )


def _check_number(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"distillation: {name} is a finite number, not {value!r}")


def _is_names(pairs: Any) -> bool:
    return isinstance(pairs, Mapping) and all(isinstance(name, str) for pair in pairs.items() for name in pair)


def distillation_of(asked: Any) -> Distillation | None:
    """Read a distillation: one, a teacher to take the logits of, or None.

    Raises:
        ConfigError: it is none of these.
    """
    if asked is None or isinstance(asked, Distillation):
        return asked
    if isinstance(asked, nn.Module):
        return Distillation(asked)
    raise ConfigError(f"distill: a Distillation or a teacher (a torch.nn.Module) is expected, not {asked!r}")
