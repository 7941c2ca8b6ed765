"""Adaptors: the layers that know one framework each."""

from subbyte.adaptor.base import Adaptor

__all__ = ["Adaptor"]
