"""The values that layers read and add to, as a transformer's: who writes them, and who reads them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.prepared.channel_rules import NONE
from subbyte.adaptor.pytorch.prepared.data_flow import DataFlow, Source
from subbyte.adaptor.pytorch.swap import float_class


@dataclass(frozen=True)
class ResidualStream:
    """Values that are added to each other, channel by channel.

    Args:
        size: how many channels.
        writers: the Embeddings and weighted ops whose outputs they are.
        norms: that read them, each with the weighted ops that read it.
        readers: weighted ops that read them as they are.
        obstacle: why they cannot be turned; empty where they can.
    """

    size: int
    writers: tuple[str, ...]
    norms: Mapping[str, tuple[str, ...]]
    readers: tuple[str, ...]
    obstacle: str


@dataclass(frozen=True)
class Heads:
    """Channels that attention mixes by head, between the op that makes them and one that reads them.

    Args:
        source: the op that makes them.
        rows: for each head the output channels of the source, in order.
        readers: for each op that reads them, for each head all runs of its input channels that are the head's.
    """

    source: str
    rows: tuple[Tensor, ...]
    readers: Mapping[str, tuple[Tensor, ...]]


def residual_streams(model: nn.Module, flow: DataFlow) -> Iterator[ResidualStream]:
    """The streams that at least one norm or weighted op reads, with two writers at the least."""
    by_stream: dict[int, list[Source]] = {}
    for source in flow.sources.values():
        by_stream.setdefault(int(flow.streams[source.first]), []).append(source)
    for sources in by_stream.values():
        if len(sources) > 1:
            yield _stream(model, flow, sources)


def attention_heads(flow: DataFlow) -> Iterator[Heads]:
    """The weighted ops whose heads other weighted ops read, and nothing else."""
    for link in flow.links():
        first, numbers = link.source.first, link.source.numbers
        bundles = torch.where(link.free & ~flow.bent[numbers], flow.bundles[numbers] - first, NONE)
        rows = [(bundles == bundle).nonzero().flatten() for bundle in bundles[bundles >= 0].unique()]
        runs = {name: [_runs(own, row) for row in rows] for name, own in link.readers.items()}
        whole = all(run is not None for found in runs.values() for run in found)
        if link.source.kind == "weighted" and rows and whole:
            readers = {name: tuple(run for run in found if run is not None) for name, found in runs.items()}
            yield Heads(link.source.name, tuple(rows), readers)


def _runs(channels: Tensor, head: Tensor) -> Tensor | None:
    """Where a reader's channels are those of a head, [runs, channels of the head]; None where they are out of order."""
    places = torch.isin(channels, head.to(channels.dtype)).nonzero().flatten()
    if len(places) % len(head):
        return None
    runs = places.reshape(-1, len(head))
    in_order = bool((channels[runs] == head).all()) and bool((runs.diff(dim=1) == 1).all())
    return runs if in_order else None


def _stream(model: nn.Module, flow: DataFlow, sources: list[Source]) -> ResidualStream:
    size = sources[0].channels
    channels = flow.streams[sources[0].numbers]
    reading = {name: flow.streams[own.long()] for name, own in flow.readers.items() if bool((own != NONE).any())}
    readers = [name for name, own in reading.items() if bool(torch.isin(own, channels).any())]
    norms = {name: _readers_of(flow, name) for name in readers if _kind(flow, name) == "norm"}
    return ResidualStream(
        size,
        tuple(source.name for source in sources),
        norms,
        tuple(name for name in readers if name not in norms),
        _obstacle(model, flow, sources, channels, {name: reading[name] for name in readers}, norms),
    )


def _obstacle(
    model: nn.Module,
    flow: DataFlow,
    sources: list[Source],
    channels: Tensor,
    reading: Mapping[str, Tensor],
    norms: Mapping[str, tuple[str, ...]],
) -> str:
    for source in sources:
        if source.kind in ("norm", "batch_norm"):
            return (
                f"the norm {source.name!r} writes into it, as in post-norm models, and a rotation does not pass a norm"
            )
        if not torch.equal(flow.streams[source.numbers], channels):
            return f"{source.name!r} writes its channels in another order"
        if getattr(model.get_submodule(source.name), "folded_norm", None) is not None:
            return f"a BatchNorm, which scales each channel by itself, belongs to {source.name!r}"
    members = torch.isin(flow.streams, channels)
    if bool((flow.blocked & members).any()):
        return "it is returned, or read by something that is no norm and no weighted op"
    if bool((flow.bent & members).any()):
        return "a function such as relu, which a rotation does not pass, reads it"
    for name, own in reading.items():
        if not torch.equal(own, channels):
            return f"{name!r} reads its channels in another order"
    for name, readers in norms.items():
        numbers = flow.sources[name].numbers
        if bool(flow.added[numbers].any()):
            return (
                f"what the norm {name!r} gives is added to, as in post-norm models, and a rotation does not pass a norm"
            )
        if not readers or bool((flow.blocked | flow.bent)[numbers].any()):
            return f"what the norm {name!r} gives is not read by weighted ops alone"
    return ""


def _readers_of(flow: DataFlow, norm: str) -> tuple[str, ...]:
    """The ops that read all that a norm gives, in order; none where one reads it otherwise."""
    source = flow.sources[norm]
    numbers = torch.arange(source.first, source.first + source.channels)
    met = [name for name, own in flow.readers.items() if bool(torch.isin(own, numbers).any())]
    whole = all(torch.equal(flow.readers[name].long(), numbers) and _kind(flow, name) != "norm" for name in met)
    return tuple(met) if whole else ()


def _kind(flow: DataFlow, name: str) -> str:
    return flow.sources[name].kind if name in flow.sources else "weighted"


def commutes(norm: Any, rotation: Tensor) -> bool:
    """Whether a norm without weight and bias gives of what is turned the turned of what it gave: tried out.

    Args:
        norm: LayerNorm, RMSNorm or the like.
        rotation: [channels, channels], orthogonal.
    """
    size = len(rotation)
    x = torch.randn(4, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameters = dict(norm._parameters)
    try:
        for name, one in parameters.items():
            if one is not None:
                plain = torch.ones_like(one) if name == "weight" else torch.zeros_like(one)
                norm._parameters[name] = nn.Parameter(plain, requires_grad=False)
        weight = norm._parameters["weight"]
        plainly, turned = (
            float_class(norm).forward(norm, value.to(weight.dtype).to(weight.device)).double().cpu()
            for value in (x, x @ rotation)
        )
    finally:
        norm._parameters.update(parameters)
    return torch.allclose(plainly @ rotation, turned, rtol=0, atol=1e-3)
