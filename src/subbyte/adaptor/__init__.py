"""Adaptors: the layers that know one framework each."""

from subbyte.adaptor.base import Adaptor, TunableModel

__all__ = ["Adaptor", "TunableModel"]
