"""Quantization-aware training in Hugging Face's Trainer: a callback, and a small GPT-2 that learns to count.

    pip install transformers accelerate
    python examples/trainer_qat.py

Nothing is downloaded: the model is made from a configuration, and the text from a rule (each token is the sum of the
two before it). The callback belongs to any model made by `prepare_qat`.
"""

import argparse
import tempfile
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

import subbyte

TOKENS, LENGTH = 8, 16


class QuantizationAware(TrainerCallback):
    """Steps of scales in proportion to them; stops the run, with a message that names it, when one leaves its range.

    Args:
        model: made by `prepare_qat`.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.monitor = subbyte.training.RangeMonitor(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        subbyte.training.RelativeSteps(others["optimizer"].optimizer, self.model)  # the one that Accelerate wraps

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if subbyte.training.follows_progress(self.model):
            subbyte.training.set_progress(self.model, state.global_step / state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.monitor.check()


def texts(count: int, seed: int) -> Tensor:
    """Sequences [count, LENGTH] in which each token is the sum of the two before it."""
    tokens = torch.randint(0, TOKENS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    for place in range(2, LENGTH):
        tokens[:, place] = (tokens[:, place - 1] + tokens[:, place - 2]) % TOKENS
    return tokens


def gpt2() -> PreTrainedModel:
    """A small GPT-2 with random weights."""
    size = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": LENGTH, "vocab_size": TOKENS}
    special = {"bos_token_id": 0, "eos_token_id": 0}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**size, **special, **dropout))


def train(model: PreTrainedModel, steps: int, learning_rate: float, callbacks: list[TrainerCallback]) -> None:
    """Some steps of Trainer, on the CPU, with nothing written and nothing shown."""
    dataset = [{"input_ids": tokens, "labels": tokens} for tokens in texts(2048, seed=0)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            learning_rate=learning_rate,
            per_device_train_batch_size=64,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
        )
        Trainer(model, arguments, train_dataset=dataset, callbacks=callbacks).train()


@torch.no_grad()
def accuracy(model: PreTrainedModel) -> float:
    """In percent, of the tokens that the rule tells, in texts that training did not see."""
    tokens = texts(256, seed=1)
    guessed = model(tokens).logits.argmax(-1)
    return 100 * float((guessed[:, 1:-1] == tokens[:, 2:]).float().mean())


def run(float_steps: int, steps: int) -> tuple[PreTrainedModel, dict[str, float]]:
    """Train in float, then at four bits; the converted model, and accuracies in percent."""
    torch.manual_seed(0)
    model = gpt2()
    train(model, float_steps, 3e-3, [])
    found = {"float": accuracy(model.eval())}

    prepared = subbyte.prepare_qat(model, "w4a4", [{"input_ids": texts(64, seed=2)}], first_last="int8")
    found["w4a4, not trained"] = accuracy(prepared.eval())
    train(prepared, steps, 1e-3, [QuantizationAware(prepared)])
    converted: Any = subbyte.convert(prepared)
    found["w4a4, trained"] = accuracy(converted)
    tokens = texts(8, seed=3)
    with torch.no_grad():
        assert torch.equal(converted(tokens).logits, prepared.eval()(tokens).logits)  # what was trained is what runs
    return converted, found


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Quantization-aware training of a small GPT-2, in Trainer.")
    arguments.add_argument("--float-steps", type=int, default=200)
    arguments.add_argument("--steps", type=int, default=100)
    asked = arguments.parse_args()
    model, accuracies = run(asked.float_steps, asked.steps)
    for name, value in accuracies.items():
        print(f"{name:18}{value:6.1f} %")
