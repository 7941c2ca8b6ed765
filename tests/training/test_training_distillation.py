"""Distillation: its terms against formulas written out, and that it leaves nothing in the student."""

import copy
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from networks_to_train import SharedNet
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import subbyte
from networks import randomized, seeded
from subbyte.training import Distillation

X = seeded((6, 4, 6, 6))


class Stages(nn.Module):
    """Two residual blocks between a first and a last layer; `wide` widens the teacher, `deep` adds a block."""

    def __init__(self, deep: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1)
        self.blocks = nn.Sequential(*(_Block() for _ in range(deep)))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(F.relu(self.first(x))).mean((2, 3)))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.one(x))) + x)


def _student(config: str = "w2a2") -> nn.Module:
    return subbyte.prepare_qat(randomized(Stages()), config, X, first_last="int8").train()


def _of_blocks(student: Tensor, teacher: Tensor) -> Tensor:
    terms = [(s / s.norm() - t / t.norm()).square().sum() for s, t in zip(student, teacher, strict=True)]
    return torch.stack(terms).mean()


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_logits(temperature: float) -> None:
    student, teacher = _student(), randomized(Stages(), 3)
    output, loss = Distillation(teacher, logits=0.5, temperature=temperature)(student, X)
    assert torch.equal(output, student(X))
    p = (teacher.eval()(X) / temperature).softmax(1)
    q = (output / temperature).softmax(1)
    expected = 0.5 * temperature**2 * (p * (p.log() - q.log())).sum(1).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is not None for p in student.parameters())
    assert all(p.grad is None for p in teacher.parameters())


def test_logits_of_a_sequence_are_averaged_over_its_places() -> None:
    x = seeded((3, 7, 4))
    student, teacher = nn.Linear(4, 5), nn.Linear(4, 5)
    _, loss = Distillation(teacher, temperature=1)(student, x)
    p, q = teacher(x).softmax(-1), student(x).softmax(-1)
    torch.testing.assert_close(loss, (p * (p.log() - q.log())).sum(-1).mean())
    _, first = Distillation(teacher, temperature=1, axis=1)(student, x)
    p, q = teacher(x).softmax(1), student(x).softmax(1)
    torch.testing.assert_close(first, (p * (p.log() - q.log())).sum(1).mean())


def test_blocks() -> None:
    student, teacher = _student(), randomized(Stages(), 3)
    seen: dict[str, Tensor] = {}
    names = ["first", "blocks.0", "blocks.1", "head"]
    for model, whose in ((student, "s "), (teacher, "t ")):
        for name in names:
            key = whose + name
            model.get_submodule(name).register_forward_hook(lambda m, a, out, key=key: seen.update({key: out}))
    _, loss = Distillation(teacher, logits=0, blocks=2.0)(student, X)
    expected = 2 * torch.stack([_of_blocks(seen[f"s {name}"], seen[f"t {name}"]) for name in names]).mean()
    torch.testing.assert_close(loss, expected)
    _, both = Distillation(teacher, blocks=2.0)(student, X)
    _, logits = Distillation(teacher)(student, X)
    torch.testing.assert_close(both, loss + logits)


def test_another_teacher_by_pairs() -> None:
    student, teacher = _student(), randomized(Stages(3), 3)
    with pytest.raises(subbyte.ModelError, match=r"blocks.2.*are not the same.*pairs="):
        Distillation(teacher, blocks=1)(student, X)
    pairs = {"blocks.0": "blocks.0", "blocks.1": "blocks.2"}
    _, loss = Distillation(teacher, logits=0, blocks=1, pairs=pairs)(student, X)
    assert loss.item() > 0
    with pytest.raises(subbyte.ModelError, match=r"teacher has no module 'blocks.7'"):
        Distillation(teacher, blocks=1, pairs={"blocks.0": "blocks.7"})(student, X)
    with pytest.raises(subbyte.ModelError, match=r"student has no module 'block'; did you mean 'blocks'"):
        Distillation(teacher, blocks=1, pairs={"block": "blocks"})(student, X)
    with pytest.raises(subbyte.ModelError, match=r"shapes \(6, 8, 6, 6\) and \(6, 5\)"):
        Distillation(teacher, blocks=1, pairs={"blocks.0": "head"})(student, X)


def test_the_float_network_as_its_own_student_has_nothing_to_learn() -> None:
    teacher = randomized(Stages())
    _, loss = Distillation(teacher, blocks=1)(copy.deepcopy(teacher), X)
    assert loss.item() == pytest.approx(0, abs=1e-6)


def test_it_leaves_nothing_in_student_and_teacher() -> None:
    student, teacher = _student(), randomized(Stages(), 3).train()
    keys, attributes = student.state_dict().keys(), {m: set(vars(m)) for m in student.modules()}
    before = copy.deepcopy(teacher.state_dict())
    other = copy.deepcopy(student)
    distillation = Distillation(teacher, blocks=1)
    output, loss = distillation(student, X)
    again, loss_again = distillation(other, X)
    assert torch.equal(output, again)
    assert torch.equal(loss, loss_again)
    assert student.state_dict().keys() == keys
    assert {m: set(vars(m)) for m in student.modules()} == attributes
    assert not any(module._forward_hooks for model in (student, teacher) for module in model.modules())
    assert all(module.training for module in teacher.modules())
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


def test_a_module_that_is_called_twice_is_compared_call_by_call() -> None:
    student = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X).train()
    _, loss = Distillation(randomized(SharedNet(), 2), logits=0, blocks=1, pairs={"twice": "twice"})(student, X)
    loss.backward()
    assert student.twice.weight.grad is not None
    with pytest.raises(subbyte.ModelError, match="called 2 and 1 times"):
        Distillation(randomized(SharedNet(), 2), blocks=1, pairs={"twice": "conv2"})(student, X)


# Dynamo itself instantiates what it tells others not to.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning")
def test_in_a_compiled_step() -> None:
    torch._dynamo.reset()
    student, teacher = _student("w4a4"), randomized(Stages(), 3)
    distillation = Distillation(teacher)
    _, loss = distillation(student, X)
    _, compiled = distillation(torch.compile(student, backend="aot_eager"), X)
    torch.testing.assert_close(compiled, loss)
    with pytest.raises(subbyte.ModelError, match=r"compiled.*distil logits alone"):
        Distillation(teacher, blocks=1)(torch.compile(student, backend="aot_eager"), X)


@pytest.mark.skipif(not dist.is_available() or os.name == "nt", reason="needs torch.distributed with gloo")
def test_a_student_in_distributed_data_parallel(tmp_path: Path) -> None:
    student, distillation = _student(), Distillation(randomized(Stages(), 3), blocks=1)
    other = copy.deepcopy(student)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        output, loss = distillation(DistributedDataParallel(student), X)
        loss.backward()
    finally:
        dist.destroy_process_group()
    expected, wanted = distillation(other, X)
    wanted.backward()
    assert torch.equal(output, expected)
    assert torch.equal(loss, wanted)
    for own, theirs in zip(student.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own.grad, theirs.grad)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logits": -1}, "weights of 0 or more"),
        ({"logits": 0}, "one above 0"),
        ({"temperature": 0}, "temperature is above 0"),
        ({"pairs": {"a": "b"}}, "give blocks a weight"),
        ({"logits": "1"}, "logits is a finite number, not '1'"),
        ({"blocks": "two"}, "blocks is a finite number"),
        ({"logits": float("nan")}, "logits is a finite number, not nan"),
        ({"temperature": float("inf")}, "temperature is a finite number"),
        ({"axis": 1.0}, "axis is a whole number"),
        ({"pairs": ["a"], "blocks": 1}, "pairs are {'module of the student'"),
        ({"pairs": {"a": 1}, "blocks": 1}, "pairs are {'module of the student'"),
        ({"output": True}, "output is a key or an index"),
    ],
)
def test_numbers_without_a_meaning(fields: dict[str, object], message: str) -> None:
    with pytest.raises(subbyte.ConfigError, match=message):
        Distillation(Stages(), **fields)


class Telling(nn.Module):
    """A network that returns its logits among other things."""

    def __init__(self, form: Any, seed: int = 0) -> None:
        super().__init__()
        self.network, self.form = randomized(Stages(), seed), form

    def forward(self, x: Tensor) -> Any:
        x = self.network.blocks(F.relu(self.network.first(x)))
        return self.form(x, self.network.head(x.mean((2, 3))))


class Named(NamedTuple):
    features: Tensor
    logits: Tensor


@dataclass
class Held:
    loss: Tensor
    logits: Tensor


@pytest.mark.parametrize(
    ("form", "output"),
    [
        (lambda f, y: {"features": f, "logits": y}, None),
        (lambda f, y: {"loss": y.sum(), "logits": y}, None),
        (Named, None),
        (lambda f, y: Held(f.mean(), y), None),
        (lambda f, y: (y, None), None),
        (lambda f, y: [y.sum(), y, y.argmax(1)], None),
        (lambda f, y: {"features": f, "classes": y}, "classes"),
        (lambda f, y: Held(y, f), "loss"),
        (lambda f, y: (f, y), 1),
        (lambda f, y: (f, y), -1),
    ],
)
def test_logits_are_found_among_other_outputs(form: Any, output: Any) -> None:
    _, want = Distillation(Telling(lambda f, y: y, 3))(Telling(lambda f, y: y), X)
    _, got = Distillation(Telling(form, 3), output=output)(Telling(form), X)
    assert torch.equal(got, want)
    assert want > 0


@pytest.mark.parametrize(
    ("form", "output", "message"),
    [
        (lambda f, y: (f, y), None, r"the student returns a tuple, where 2 tensors may be the logits.*output="),
        (lambda f, y: {"features": f, "classes": y}, None, "a dict of classes, features, where 2 tensors"),
        (lambda f, y: {}, None, "where 0 tensors may be"),
        (lambda f, y: (f, y), 2, "a tuple, which has no output 2"),
        (lambda f, y: (f, y), "logits", "a tuple, which has no output 'logits'"),
        (lambda f, y: y, "logits", "a Tensor, which has no output 'logits'"),
        (lambda f, y: {"logits": None, "x": y}, None, "output 'logits' of the student is no float tensor: NoneType"),
    ],
)
def test_logits_that_have_to_be_named(form: Any, output: Any, message: str) -> None:
    with pytest.raises(subbyte.ConfigError, match=message):
        Distillation(Telling(form, 3), output=output)(Telling(form), X)


def test_an_axis_that_logits_have_not() -> None:
    with pytest.raises(subbyte.ConfigError, match=r"logits of shape \(6, 5\) have no axis 2"):
        Distillation(Stages(), axis=2)(Stages(), X)


class Pair(nn.Module):
    def __init__(self, second: Any) -> None:
        super().__init__()
        self.layer, self.second = nn.Linear(4, 5), second

    def forward(self, x: Tensor) -> Any:
        return self.layer(x), self.second


class Around(nn.Module):
    """One block, run by a function."""

    def __init__(self, second: Any = None, run: Any = None) -> None:
        super().__init__()
        self.block, self.run = Pair(second), run

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = (self.block(x) if self.run is None else self.run(self.block, x))[0]
        return y


def test_blocks_that_give_several_values() -> None:
    x, pairs = seeded((6, 4)), {"block": "block"}
    _, want = Distillation(randomized(Around()), logits=0, blocks=1, pairs={"block.layer": "block.layer"})(Around(), x)
    assert want > 0
    for second in (None, torch.arange(3)):
        student = randomized(Around(second), 2)
        _, got = Distillation(randomized(Around(second)), logits=0, blocks=1, pairs=pairs)(student, x)
        _, same = Distillation(randomized(Around()), logits=0, blocks=1, pairs={"block.layer": "block.layer"})(
            student, x
        )
        assert torch.equal(got, same)
    with pytest.raises(subbyte.ConfigError, match="'block' gives a tuple with 2 float tensors"):
        Distillation(Around(x), blocks=1, pairs=pairs)(Around(x), x)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_a_block_that_is_run_without_gradients() -> None:
    x, pairs = seeded((6, 4)), {"block": "block"}
    distillation = Distillation(Around(), blocks=1, pairs=pairs)
    with pytest.raises(subbyte.ModelError, match=r"'block' gives has no gradient.*use_reentrant=False"):
        distillation(Around(run=partial(checkpoint, use_reentrant=True)), x)
    student = Around(run=partial(checkpoint, use_reentrant=False))
    distillation(student, x)[1].backward()
    assert student.block.layer.weight.grad is not None
    frozen = Around()
    frozen.block.requires_grad_(False)
    assert not Distillation(Around(), logits=0, blocks=1, pairs=pairs)(frozen, x)[1].requires_grad


def test_a_student_that_is_compiled_in_place() -> None:
    student = Stages()
    student.compile(backend="eager")
    with pytest.raises(subbyte.ModelError, match=r"compiled.*distil logits alone"):
        Distillation(Stages(), blocks=1)(student, X)


def test_forms() -> None:
    teacher = Stages()
    assert Distillation.of("logits", teacher) == Distillation(teacher)
    assert Distillation.of("blocks", teacher) == Distillation(teacher, logits=0, blocks=1)
    assert Distillation.of("logits+blocks", teacher) == Distillation(teacher, blocks=1)
    assert Distillation.of({"blocks": 3, "temperature": 2}, teacher) == Distillation(teacher, blocks=3, temperature=2)
    with pytest.raises(subbyte.ConfigError, match="'logit' is unknown; did you mean 'logits'"):
        Distillation.of("logit+blocks", teacher)
    with pytest.raises(subbyte.ConfigError, match="'temprature' is unknown; did you mean 'temperature'"):
        Distillation.of({"temprature": 2}, teacher)
    with pytest.raises(subbyte.ConfigError, match="or a mapping, not 3"):
        Distillation.of(3, teacher)
    with pytest.raises(subbyte.ModelError, match="not a str"):
        Distillation("resnet")
    with pytest.raises(subbyte.ModelError, match=r"logits of shape \(6, 5\) and the teacher of \(6, 8, 6, 6\)"):
        Distillation(nn.Conv2d(4, 8, 3, padding=1))(_student(), X)
