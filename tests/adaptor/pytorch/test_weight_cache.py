"""Quantized weights of a prepared model are kept, and made anew exactly when something changed."""

import pytest
import torch
from torch import nn

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte.adaptor.pytorch.weight import WeightQuantizer

X = seeded((4, 3, 7, 6))


@pytest.fixture
def quantized_ops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops whose weights were quantized, in order."""
    seen: list[str] = []
    original = WeightQuantizer._quantize

    def counted(self: WeightQuantizer, *args: object) -> object:
        seen.append(self.name)
        return original(self, *args)

    monkeypatch.setattr(WeightQuantizer, "_quantize", counted)
    return seen


def prepared(config: str = "w4a4") -> nn.Module:
    return subbyte.prepare(randomized(ResidualNet()), config, X)


def assert_fresh(model: nn.Module) -> None:
    """What the cache gives is what converting, which uses no cache, gives."""
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(X), subbyte.convert(model)(X))


def test_unchanged_weights_are_quantized_once(quantized_ops: list[str]) -> None:
    model = prepared()
    quantized_ops.clear()
    with torch.no_grad():
        for _ in range(3):
            model(X)
        model(X[:1])
    assert sorted(quantized_ops) == ["conv1", "conv2", "linear"]


def test_only_the_changed_weight_is_quantized_again(quantized_ops: list[str]) -> None:
    model = prepared()
    with torch.no_grad():
        model(X)
        quantized_ops.clear()
        model.conv2.weight.mul_(-1)
        model(X)
    assert quantized_ops == ["conv2"]
    assert_fresh(model)


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_batch_norm_alone_changes(quantized_ops: list[str], granularity: str) -> None:
    conf = subbyte.PostTrainingQuantConfig(op_type_dict={"Conv2d": {"weight": {"granularity": [granularity]}}})
    model = subbyte.prepare(randomized(ResidualNet()), conf, X)
    with torch.no_grad():
        before = model(X)
        quantized_ops.clear()
        model.bn1.bias.add_(0.5)
        after = model(X)
        assert "conv1" in quantized_ops
        assert "conv2" not in quantized_ops
        assert not torch.equal(before, after)
        assert_fresh(model)
        for change in (model.bn2.running_var.mul_, model.bn2.running_mean.add_, model.bn2.weight.mul_):
            before = model(X)
            change(1.5)
            assert not torch.equal(model(X), before)
            assert_fresh(model)


def test_training_steps_change_weights_and_statistics() -> None:
    model = prepared()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.no_grad():
        before = model(X)
    mean = model.bn1.running_mean.clone()
    for _ in range(2):
        model.train()
        model(X).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert_fresh(model)
    assert not torch.equal(model.bn1.running_mean, mean)
    with torch.no_grad():
        assert not torch.equal(model(X), before)


def test_an_optimizer_step_in_eval_mode_is_seen() -> None:
    model = prepared()
    with torch.no_grad():
        before = model(X)
    model.conv1.weight.grad = torch.ones_like(model.conv1.weight)
    torch.optim.SGD(model.parameters(), 1.0).step()
    with torch.no_grad():
        assert not torch.equal(model(X), before)
    assert_fresh(model)


def test_writes_through_data_are_seen_after_a_training_phase() -> None:
    model = prepared()
    with torch.no_grad():
        before = model(X)
        model.train()
        model.conv1.weight.data.add_(0.3)  # bumps no version
        model.eval()
        assert not torch.equal(model(X), before)
    assert_fresh(model)


def test_replaced_and_loaded_weights_are_seen() -> None:
    model = prepared()
    with torch.no_grad():
        before = model(X)
        model.conv1.weight = nn.Parameter(model.conv1.weight.detach() * -1)
        changed = model(X)
        assert not torch.equal(changed, before)
        assert_fresh(model)
        model.conv1.weight.data = -model.conv1.weight.data
        assert torch.equal(model(X), before)
        model.load_state_dict(randomized(ResidualNet(), 5).state_dict(), strict=False)
        assert not torch.equal(model(X), before)
    assert_fresh(model)


def test_a_changed_scale_is_seen() -> None:
    model = prepared()
    with torch.no_grad():
        before = model(X)
        model.conv1.weight_quantizer.scale.mul_(2)
        assert not torch.equal(model(X), before)
    assert_fresh(model)


def test_a_bias_alone_changes() -> None:
    model = prepared()
    with torch.no_grad():
        before = model(X)
        model.linear.bias.add_(1)
        assert torch.allclose(model(X), before + 1, atol=1e-5)
    assert_fresh(model)


def test_preparing_and_running_in_inference_mode() -> None:
    """Its tensors have no version: a cache that goes by versions must not fall over, nor go stale."""
    with torch.inference_mode():
        model = prepared()
        before = model(X)
        assert torch.equal(subbyte.convert(model)(X), before)
    with torch.no_grad():
        assert torch.equal(model(X), before)
        model.conv1.weight.mul_(-1)
        assert not torch.equal(model(X), before)
    assert_fresh(model)


def test_a_copy_of_a_warm_model_has_a_cache_of_its_own() -> None:
    import copy

    model = prepared()
    with torch.no_grad():
        before = model(X)
        other = copy.deepcopy(model)
        other.conv1.weight.mul_(-1)
        assert torch.equal(model(X), before)
        assert not torch.equal(other(X), before)
    assert_fresh(other)
    with torch.no_grad():
        model.load_state_dict(other.state_dict())
        assert torch.equal(model(X), other(X))
