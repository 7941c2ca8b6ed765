"""A Llama (Touvron et al., 2023): RMSNorm, interleaved RoPE, grouped-query attention, SwiGLU, a tied head."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a Llama."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    seq: int
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0


class Attention(nn.Module):
    """Causal attention; each key and value head serves heads / kv_heads query heads."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.size = config.dim // config.heads
        self.q = nn.Linear(config.dim, config.heads * self.size, bias=False)
        self.k = nn.Linear(config.dim, config.kv_heads * self.size, bias=False)
        self.v = nn.Linear(config.dim, config.kv_heads * self.size, bias=False)
        self.o = nn.Linear(config.heads * self.size, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key = rotate(self._heads(self.q(x)), cos, sin), rotate(self._heads(self.k(x)), cos, sin)
        value = self._heads(self.v(x))
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)  # [batch, heads, tokens, size]


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and feed-forward, each behind an RMSNorm and beside a shortcut."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.attn = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Llama(nn.Module):
    """Token ids [batch, tokens] to logits [batch, tokens, vocab] of the token that follows each."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.head = nn.Linear(config.dim, config.vocab, bias=False)
        self.head.weight = self.embed.weight
        size = config.dim // config.heads
        frequency = config.rope_theta ** (-torch.arange(0, size, 2).float() / size)
        angle = torch.arange(config.seq).float()[:, None] * frequency
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of neighbouring pairs: x [..., tokens, size], cos and sin [tokens, size / 2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
