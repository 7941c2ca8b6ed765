"""What loops do beside forward and backward: optimizers, averages, scaled losses, copies, other compilers."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks_to_train import SharedNet
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte.training.binary import LearnableShift, RPReLU

X, TARGET = seeded((16, 4, 6, 6)), torch.arange(16) % 5
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.02, "momentum": 0.9, "foreach": True}), ("SGD", {"lr": 0.02, "fused": True}),
    ("Adam", {"amsgrad": True}), ("AdamW", {"foreach": False}), ("Adam", {"fused": True}),
    ("RMSprop", {}), ("RAdam", {}), ("Adagrad", {}), ("LBFGS", {"lr": 0.1, "max_iter": 3}),
]  # fmt: skip


def _prepared(config: str = "w4a4", seed: int = 0, **options: Any) -> nn.Module:
    return subbyte.prepare_qat(randomized(SharedNet(), seed), config, X, **options).train()


def _loss(model: nn.Module, x: Tensor = X, target: Tensor = TARGET) -> Tensor:
    return F.cross_entropy(model(x).float(), target)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model)
        loss.backward()
        return loss

    return optimizer.step(closure).detach()


def _agree(model: nn.Module, x: Tensor = X) -> None:
    model.eval()
    with torch.no_grad():
        output = model(x)
        assert torch.isfinite(output).all()
        assert torch.equal(subbyte.convert(model)(x), output)


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_any_optimizer(name: str, options: dict[str, Any]) -> None:
    model = _prepared()
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    for _ in range(2):
        _step(model, optimizer)
    moved = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, start[name])]
    assert {"conv2.weight", "conv2.weight_quantizer.scale"} <= set(moved)
    _agree(model)


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("config", ["w4a4", "wbint1a4"])
def test_averages_of_weights(config: str, use_buffers: bool) -> None:
    model = _prepared(config, first_last="int8")
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=use_buffers)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    want = dict.fromkeys(("head.weight_quantizer.scale", "conv2.weight"), torch.zeros(()))
    for step in range(3):
        _step(model, optimizer)
        average.update_parameters(model)
        now = dict(model.named_parameters())
        want = {name: now[name].detach().clone().lerp(before, 0.5 if step else 0.0) for name, before in want.items()}
    for name, value in want.items():
        torch.testing.assert_close(dict(average.module.named_parameters())[name].detach(), value)
    if not use_buffers:
        update_bn([X], average)
    _agree(average.module)


def test_a_loss_scaled_for_fp16() -> None:
    model = _prepared()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.02), torch.amp.GradScaler("cpu", init_scale=2.0**24)
    start = model.conv2.weight_quantizer.scale.detach().clone()
    for _ in range(16):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = _loss(model)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0**24  # steps whose gradients were infinite in fp16 were left out
    assert not torch.equal(model.conv2.weight_quantizer.scale, start)
    _agree(model)


def test_gradients_accumulate_over_parts_of_a_batch() -> None:
    model = randomized(SharedNet())
    prepared = subbyte.prepare_qat(model, "w4a4", X)
    for module in prepared.train().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()  # of the whole batch or of its halves: the same
    _loss(prepared).backward()
    whole = {name: p.grad.clone() for name, p in prepared.named_parameters() if p.grad is not None}
    prepared.zero_grad()
    for half in (slice(0, 8), slice(8, 16)):
        (_loss(prepared, X[half], TARGET[half]) / 2).backward()
    for name, value in whole.items():
        torch.testing.assert_close(dict(prepared.named_parameters())[name].grad, value, atol=1e-5, rtol=1e-4)


def test_a_whole_model_is_pickled_and_goes_on() -> None:
    model = _prepared()
    _step(model, torch.optim.SGD(model.parameters(), 0.02))
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    others = [pickle.loads(pickle.dumps(model)), torch.load(stream, weights_only=False), copy.deepcopy(model)]
    losses = [_step(each, torch.optim.SGD(each.parameters(), 0.02)) for each in (model, *others)]
    assert all(torch.equal(loss, losses[0]) for loss in losses)
    with torch.no_grad():
        outputs = [each.eval()(X) for each in (model, *others)]
    assert all(torch.equal(output, outputs[0]) for output in outputs)
    _agree(others[0])


def _binary(seed: int) -> nn.Module:
    net = nn.Sequential(
        *(nn.Conv2d(4, 8, 3), LearnableShift(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), RPReLU(8)),
        *(nn.Flatten(), nn.Linear(32, 5)),
    )
    rules = {"types": {"bint1": {"weight": {"ir_net": {"standardized": True}}, "activation": "ir_net"}}}
    return subbyte.prepare_qat(randomized(net, seed), "w1a1", X, first_last="int8", training=rules).train()


def test_a_scheduled_run_goes_on_from_its_checkpoint_bit_for_bit() -> None:
    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> Tensor:
        for step in range(first, last):
            if step % 2 == 0:
                subbyte.training.set_progress(model, step / 10)
            loss = _step(model, optimizer)
        return loss

    model = _binary(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    steps(model, optimizer, 0, 3)
    stream = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stream)
    want = steps(model, optimizer, 3, 6)
    stream.seek(0)
    saved = torch.load(stream)
    again = _binary(5)
    again.load_state_dict(saved["model"])
    other = torch.optim.Adam(again.parameters(), 1e-2)
    other.load_state_dict(saved["optimizer"])
    assert torch.equal(steps(again, other, 3, 6), want)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_cast_model_trains_in_fp32_and_takes_and_gives_its_type(dtype: torch.dtype) -> None:
    model = _prepared().to(dtype)
    F.cross_entropy(model(X.to(dtype)).float(), TARGET).backward()
    assert {p.dtype for name, p in model.named_parameters() if name.endswith("quantizer.scale")} == {torch.float32}
    model.eval()
    with torch.no_grad():
        output = model(X.to(dtype))
        assert output.dtype == dtype
        assert torch.equal(subbyte.convert(model)(X.to(dtype)), output)


@pytest.mark.slow  # the C++ compiler of Inductor takes most of a minute for each
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("config", "training"),
    [
        ("w4a4", None),
        ("w3a3", {"weight": "ewgs", "activation": "pact"}),
        ("w1a1", {"types": {"bint1": {"weight": "ir_net", "activation": "approx_sign"}}}),
        ("wternarya4", {"types": {"ternary": {"weight": "trained_ternary"}}}),
    ],
)
@pytest.mark.filterwarnings("ignore::subbyte.LostSignWarning")
def test_inductor_compiles_one_graph(config: str, training: Any) -> None:
    torch._dynamo.reset()
    x = seeded((16, 3, 7, 6))
    model = subbyte.prepare_qat(randomized(ResidualNet()), config, x, first_last="int8", training=training).train()
    assert torch._dynamo.explain(model)(x).graph_break_count == 0
    compiled, found = torch.compile(model, fullgraph=True), []
    state = copy.deepcopy(model.state_dict())
    for run in (model, compiled):
        model.zero_grad()
        model.load_state_dict(state)
        loss = _loss(run, x)
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for eager, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, eager, atol=1e-5, rtol=1e-4)
    torch.optim.SGD(model.parameters(), 0.02).step()
    model.eval()
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
        assert torch.equal(subbyte.convert(model)(x), model(x))
