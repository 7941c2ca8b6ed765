"""Quantization-aware training in Lightning: a callback, and a network of scikit-learn's digits that it is tried on.

    pip install lightning
    python examples/lightning_qat.py

The callback belongs to any LightningModule that holds a model made by `prepare_qat`. It tells scheduled gradients how
far training has come, stops when a scale leaves its range for good, and converts the model at the end.
"""

import argparse
import logging
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import subbyte


class QuantizationAware(lightning.Callback):
    """Drives what quantization-aware training needs beside the loop.

    Args:
        name: of the prepared model in the LightningModule.

    Attributes:
        converted: the model once it is trained, its weights packed; None before.
    """

    def __init__(self, name: str = "model") -> None:
        self.name = name
        self.converted: nn.Module | None = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.monitor = subbyte.training.RangeMonitor(pl_module.get_submodule(self.name))

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        last = max((trainer.max_epochs or 1) - 1, 1)
        model = pl_module.get_submodule(self.name)
        if subbyte.training.follows_progress(model):
            subbyte.training.set_progress(model, trainer.current_epoch / last)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, *batch: Any
    ) -> None:
        self.monitor.check(outputs["loss"])

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.converted = subbyte.convert(pl_module.get_submodule(self.name))


class Classifier(lightning.LightningModule):
    """An ordinary LightningModule around any network of classes.

    Args:
        model: from images to logits [n, classes].
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)
        subbyte.training.RelativeSteps(optimizer, self.model)
        return optimizer


def network() -> nn.Module:
    """Logits [n, 10] of images [n, 1, 8, 8]."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)),
        *(nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.Flatten(), nn.Linear(512, 10)),
    )


def run(epochs: int) -> tuple[nn.Module, float]:
    """Train one-bit layers between int8 ones; the converted model, and its accuracy in percent on other images."""
    lightning.seed_everything(0, verbose=False)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
    order = torch.randperm(len(images))
    test, train = order[:397], order[397:]

    rules = {"types": {"bint1": {"weight": "ir_net", "activation": "approx_sign"}}}
    prepared = subbyte.prepare_qat(network(), "w1a1", images[train][:256], first_last="int8", training=rules)
    callback = QuantizationAware()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=epochs, callbacks=[callback], accelerator="cpu", **quiet)
    trainer.fit(Classifier(prepared), DataLoader(TensorDataset(images[train], labels[train]), 64, shuffle=True))

    assert callback.converted is not None
    with torch.no_grad():
        logits = callback.converted(images[test])
        assert torch.equal(logits, prepared.eval()(images[test]))  # what was trained is what runs
    return callback.converted, 100 * float((logits.argmax(1) == labels[test]).float().mean())


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Quantization-aware training of digits, in Lightning.")
    arguments.add_argument("--epochs", type=int, default=6)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, accuracy = run(arguments.parse_args().epochs)
    print(subbyte.summary(model))
    print(f"{accuracy:.1f} % of digits are right")
