"""Networks to quantize: small ones with random weights, and real ones where the shared data folder is there."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from subbyte import OpConfig, TuneConfig

_SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data(name: str) -> Path:
    """A file of the shared data folder beside the repository; the test is skipped where it is absent."""
    path = _SHARED / name
    if not path.exists():
        pytest.skip(f"needs the real data file ../shared/data/{name}, which is not here")
    return path


def combining(precision: str) -> dict[str, Any]:
    """A request that also quantizes each add, mul and cat, whatever reads its output."""
    return {"precision": precision, "op_type_dict": {name: {"quant_mode": "static"} for name in ("add", "mul", "cat")}}


class BasicBlock(nn.Module):
    """conv-bn-relu-conv-bn, plus the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.extra = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.stride > 1 or self.extra:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra, self.extra))
        out += x
        return F.relu(out)


class ResNetCifar(nn.Module):
    """The CIFAR ResNet of He et al., depth 6 n + 2, with zero-padded shortcuts."""

    def __init__(self, depth: int = 20, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage in range(3):
            blocks = []
            for index in range((depth - 2) // 6):
                outputs = width << stage
                blocks.append(BasicBlock(inputs, outputs, 2 if stage and not index else 1))
                inputs = outputs
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.linear = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


class UNet(nn.Module):
    """Two scales down and up again, with concatenated skips and transposed convolutions."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down0, self.down1 = _double(3, width), _double(width, 2 * width)
        self.middle = _double(2 * width, 4 * width)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.merge1 = _double(4 * width, 2 * width)
        self.up0 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.merge0 = _double(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down0(x)
        b = self.down1(F.max_pool2d(a, 2))
        y = self.middle(F.max_pool2d(b, 2))
        y = self.merge1(torch.cat([self.up1(y), b], 1))
        y = self.merge0(torch.cat([self.up0(y), a], dim=1))
        return self.head(y)


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class ResidualNet(nn.Module):
    """The smallest net with all that the arithmetic must get right: conv+bn+relu, conv+bn, add, linear."""

    def __init__(self, channels: int = 6) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels, eps=1e-2)
        self.linear = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)) + y)
        return self.linear(y.mean((2, 3)))


def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in eval(), its weights and BatchNorms far from their initial values.

    Of each BatchNorm one factor is negative and one zero.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            size = module.num_features
            module.running_mean.copy_(torch.randn(size, generator=generator))
            module.running_var.copy_(torch.rand(size, generator=generator) * 3 + 0.05)
            with torch.no_grad():
                module.weight.copy_(torch.rand(size, generator=generator) + 0.5)
                module.bias.copy_(torch.randn(size, generator=generator))
                module.weight[0] *= -1
                module.weight[-1] = 0
        elif isinstance(getattr(module, "weight", None), nn.Parameter):
            with torch.no_grad():
                for parameter in module.parameters(recurse=False):
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.copy_(
                        noise * (0.5 + torch.rand(1, generator=generator)) / max(noise[0].numel(), 4) ** 0.5
                    )
    return model.eval()


def seeded(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Normal random values, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tiny_transformer(name: str) -> nn.Module:
    """A randomly initialised `bert`, `gpt2`, `llama` or `mamba` (large weights) with 64 tokens, in eval()."""
    transformers = pytest.importorskip("transformers")
    size: dict[str, Any] = {"vocab_size": 64}
    common = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
        "max_position_embeddings": 64,
    }  # fmt: skip
    torch.manual_seed(0)
    if name == "bert":
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**size, **common))
    elif name == "gpt2":
        config = transformers.GPT2Config(
            **size, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
        )
        model = transformers.GPT2LMHeadModel(config)
    elif name == "mamba":
        config = transformers.MambaConfig(
            **size, hidden_size=32, num_hidden_layers=1, initializer_range=1.0, use_cache=False
        )
        model = transformers.MambaForCausalLM(config)
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, **common, num_key_value_heads=2))
    return model.eval()


def real_resnet20() -> nn.Module:
    """The ResNet-20 trained on CIFAR-10 of the shared data folder."""
    from safetensors.torch import load_file

    weights = load_file(shared_data("resnet20_cifar10.safetensors"))
    model = ResNetCifar(20)
    model.load_state_dict({name.removeprefix("module."): value for name, value in weights.items()})
    return model.eval()


def cifar_images(count: int) -> Tensor:
    """The first real CIFAR-10 test images, normalised as ResNet-20 takes them: [count, 3, 32, 32]."""
    image = pytest.importorskip("PIL.Image")
    with np.load(shared_data("cifar10_test_jpeg.npz")) as stored:
        header, body = stored["header"].tobytes(), stored["body"].tobytes()
        ends = np.cumsum(stored["length"][:count].astype(np.int64))
    starts = [0, *ends[:-1]]
    pixels = [
        np.asarray(image.open(io.BytesIO(header + body[start:end]))) for start, end in zip(starts, ends, strict=True)
    ]
    x = torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)


def tune_config(model: nn.Module, data: Any, weight: Any, activation: Any, mode: str = "static") -> TuneConfig:
    """Every op of a model the same: weighted ones get both specs, others (in static mode) the activation's."""
    configs = {}
    for name, kind in subbyte.query_fw_capability(model, data)["opwise"]:
        weighted = kind[0].isupper() and hasattr(model.get_submodule(name), "weight")
        if weighted:
            lookup = kind == "Embedding"
            configs[name, kind] = OpConfig(weight, None if lookup else activation, quant_mode=mode)
        elif mode == "static" and activation is not None:
            configs[name, kind] = OpConfig(activation=activation)
    return TuneConfig(configs)
