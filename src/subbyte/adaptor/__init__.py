"""Adaptors: the layers that know one framework each."""

from subbyte.adaptor.base import Adaptor, TunableModel
from subbyte.adaptor.output_error import OutputError

__all__ = ["Adaptor", "OutputError", "TunableModel"]
