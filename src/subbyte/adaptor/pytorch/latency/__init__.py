"""How long the ops of a model take on this machine, one by one and together."""

from subbyte.adaptor.pytorch.latency.model_latency import ModelLatency, Reference

__all__ = ["ModelLatency", "Reference"]
