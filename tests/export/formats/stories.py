"""stories260K of the shared data folder, as the Hugging Face Llama that it is."""

import json

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from networks import shared_data

NAMES = {
    "attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj", "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj", "ffn.gate": "mlp.gate_proj", "ffn.up": "mlp.up_proj", "ffn.down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


def stories260k() -> nn.Module:
    """The model, its output layer tied to its embedding, in eval()."""
    path = shared_data("stories260k.safetensors")
    with safe_open(str(path), "pt") as file:
        size = json.loads(file.metadata()["config"])
    config = transformers.LlamaConfig(
        hidden_size=size["dim"], intermediate_size=size["hidden"], num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"], num_key_value_heads=size["kv_heads"], vocab_size=size["vocab"],
        max_position_embeddings=size["seq"], rms_norm_eps=size["norm_eps"], tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    tensors = {_name(name): tensor for name, tensor in load_file(path).items()}
    for name, tensor in tensors.items():
        if "q_proj" in name or "k_proj" in name:  # rotary neighbours become the two halves of a head
            pairs = tensor.view(-1, size["dim"] // size["heads"] // 2, 2, size["dim"])
            tensors[name] = pairs.transpose(1, 2).reshape(tensor.shape)
    model.load_state_dict(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    return model.eval()


def nats(model: nn.Module, stories: int = 10) -> float:
    """Cross entropy of a token over the first stories."""
    with np.load(shared_data("tinystories_tokens.npz")) as file:
        ends = np.cumsum(file["length"][:stories].astype(np.int64))
        ids = torch.from_numpy(file["ids"][: ends[-1]].astype(np.int64))
    losses: list[Tensor] = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        story = ids[start:end]
        with torch.no_grad():
            scores = model(story[None]).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(scores, story[1:], reduction="none"))
    return float(torch.cat(losses).mean())


def _name(name: str) -> str:
    if name in ("embed.weight", "norm.weight"):
        return {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}[name]
    _, layer, part = name.removesuffix(".weight").split(".", 2)
    return f"model.layers.{layer}.{NAMES[part]}.weight"
