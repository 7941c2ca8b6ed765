"""Adaptors: the layers that know one framework each."""

from subbyte.adaptor.base import Adaptor, Recover, TunableModel
from subbyte.adaptor.output_error import OutputError

__all__ = ["Adaptor", "OutputError", "Recover", "TunableModel"]
