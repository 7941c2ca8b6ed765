"""Which convolutions, linear maps and matrix products stand first and last, as recipes mean it."""

from collections.abc import Set
from dataclasses import replace

from subbyte.adaptor.pytorch.trace import Trace
from subbyte.spec import Position


def mark_products(trace: Trace, shown: Set[str]) -> None:
    """First: it reads the input, and nothing it reads was multiplied before. Last: nothing made of it is again.

    Embeddings are no products. A residual connection leads from one past every layer, so that "reads the input
    through no product" would be all of them.

    Args:
        trace: of one forward; its ops are changed.
        shown: the nodes that made what the model returns: a product that does not lead there is not last.
    """
    nodes = trace.nodes  # in the order they ran: sources stand before what reads them
    fed = set(trace.shapes)  # the inputs
    behind: set[str] = set()
    for key, node in nodes.items():
        fed |= {key} if not fed.isdisjoint(node.sources) else set()
        behind |= {key} if any(source in behind or nodes[source].product for source in node.sources) else set()
        if key in fed and key not in behind:
            _mark(trace, node.product, "first")
    ahead: set[str] = set()
    live = set(shown)
    for key, node in reversed(nodes.items()):
        if key in live and key not in ahead:
            _mark(trace, node.product, "last")
        if key in live:
            live.update(node.sources)
            ahead.update(node.sources if node.product or key in ahead else ())


def _mark(trace: Trace, product: str, position: Position) -> None:
    if product:
        op = trace.graph.ops[product]
        trace.graph.ops[product] = replace(op, product_positions=op.product_positions | {position})
