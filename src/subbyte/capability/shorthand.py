"""The short way to write a precision: `w4a8:dynamic:g128:mse`."""

import re
from dataclasses import dataclass
from typing import Any

from subbyte.capability.registries import registered
from subbyte.capability.schema import base_name
from subbyte.dtypes import registered_dtypes
from subbyte.errors import ConfigError, SubbyteError, listing, nearest, quoted
from subbyte.spec import QuantMode

GRAMMAR = "w<bits or type>[a<bits or type>][:dynamic][:g<group size>][:<algorithm>]"
EXAMPLES = "w4, w4a8:dynamic:g128, wnf4, wbint1a8, w4a4:mse"

# What these find is a scale for +-mean|w|, of weights; a running mean needs batches, which weights have not.
_WEIGHTS_ONLY = frozenset({"mean_abs", "twn"})
_ACTIVATIONS_ONLY = frozenset({"moving_average_minmax"})


@dataclass(frozen=True)
class Shorthand:
    """A precision as the shorthand says it.

    Args:
        text: as it was written.
        weight: name of a data type.
        activation: name of a data type; None is weight-only.
        dynamic: activations get their range at each forward.
        group_size: of the weight's groups along the input channels; None is the default granularity.
        algorithm: how ranges are found; None is the default of the width.
    """

    text: str
    weight: str
    activation: str | None = None
    dynamic: bool = False
    group_size: int | None = None
    algorithm: str | None = None

    @property
    def quant_mode(self) -> QuantMode:
        """`weight_only` without activation, else `dynamic` where said, else `static`."""
        if self.activation is None:
            return "weight_only"
        return "dynamic" if self.dynamic else "static"

    def fields(self) -> dict[str, str]:
        """What is requested, as `{'weight.dtype': 'int4', ...}`, without the mode.

        The algorithm goes to the weight and to a static activation (a dynamic one keeps its default);
        one made for weights goes to the weight alone, one made for batches to the activation alone.
        """
        fields = {"weight.dtype": self.weight}
        if self.group_size is not None:
            fields["weight.granularity"] = f"per_group({self.group_size})"
        if self.activation is not None:
            fields["activation.dtype"] = self.activation
        if self.algorithm is not None:
            if base_name(self.algorithm) not in _ACTIVATIONS_ONLY:
                fields["weight.algorithm"] = self.algorithm
            if self.quant_mode == "static" and base_name(self.algorithm) not in _WEIGHTS_ONLY:
                fields["activation.algorithm"] = self.algorithm
        return fields


def parse_shorthand(text: str) -> Shorthand:
    """Read `w4`, `w4a8:dynamic:g128`, `wnf4`, `wbint1a8`, `w4a4:mse`.

    `wN` is intN, `aN` uintN; `w1` and `a1` are bint1. Type names match the registered data types, longest first.
    What a shorthand does not say, such as the scheme, is the first choice of the capability; the calibration method
    depends on the width as well.

    Raises:
        ConfigError: it does not follow the grammar; the message says where.
    """
    if not isinstance(text, str) or not text.startswith("w"):
        raise ConfigError(
            f"shorthand {quoted(text)} cannot be read: it is {GRAMMAR}, as in {EXAMPLES}{_in_lower_case(text)}"
        )
    head, *options = text.split(":")
    weight, activation = _types(text, head)
    given: dict[str, str] = {}
    for option in options:
        kind, value = _option(text, option)
        if kind in given:
            raise ConfigError(
                f"shorthand {quoted(text)}: {quoted(option)} comes after {quoted(given[kind])}; give one of the two"
            )
        given[kind] = value
    shorthand = Shorthand(
        text,
        weight,
        activation,
        dynamic="dynamic" in given,
        group_size=int(given["group"]) if "group" in given else None,
        algorithm=given.get("algorithm"),
    )
    _check_meaning(shorthand)
    return shorthand


def _in_lower_case(text: Any) -> str:
    """The hint of an error message where a text is a shorthand but for its capitals."""
    if not isinstance(text, str) or not text.startswith("W"):
        return ""
    try:
        parse_shorthand(text.lower())
    except SubbyteError:
        return ""
    return f"; did you mean {quoted(text.lower())}?"


def _check_meaning(shorthand: Shorthand) -> None:
    if shorthand.dynamic and shorthand.activation is None:
        raise ConfigError(
            f"shorthand {quoted(shorthand.text)}: dynamic speaks of activations, and none is named; write "
            f"'{shorthand.text.replace(':', 'a8:', 1)}' or leave out ':dynamic'"
        )
    algorithm = base_name(shorthand.algorithm or "")
    if algorithm in _ACTIVATIONS_ONLY and shorthand.quant_mode != "static":
        raise ConfigError(
            f"shorthand {quoted(shorthand.text)}: {algorithm} speaks of static activations, and there are none"
        )


def _types(text: str, head: str) -> tuple[str, str | None]:
    """The weight's and the activation's type; the longest name wins whose rest can be read too."""
    problems: list[ConfigError] = []
    for weight, rest in _names(head[1:], "int"):
        if not rest:
            return _checked(text, "w", weight), None
        if rest.startswith("a"):
            for activation, left in _names(rest[1:], "uint"):
                if not left:
                    return _checked(text, "w", weight), _checked(text, "a", activation)
            problems.append(_unknown(text, "a", rest[1:]))
    raise problems[0] if problems else _unknown(text, "w", re.split(r"a\d*$", head[1:])[0])


def _names(text: str, integer: str) -> list[tuple[str, str]]:
    """Every way to read a type at the start of a text, longest first, with what is left."""
    digits = re.match(r"\d+", text)
    if digits:
        bits = int(digits[0])
        return [("bint1" if bits == 1 else f"{integer}{bits}", text[digits.end() :])]
    known = sorted(registered_dtypes(), key=len, reverse=True)
    return [(name, text[len(name) :]) for name in known if text.startswith(name)]


def _checked(text: str, letter: str, name: str) -> str:
    known = registered_dtypes().get(name)
    digits = name.removeprefix("u").removeprefix("int")
    if known is None and digits in ("16", "32"):
        raise ConfigError(
            f"shorthand {quoted(text)}: {letter}{digits} would be a float; "
            + ("leave out 'a...' for float activations" if letter == "a" else "to leave an op float write 'fp32'")
        )
    if known is None:
        raise ConfigError(f"shorthand {quoted(text)}: {letter}{digits}: bits are 1..8")
    if known.is_float:
        raise ConfigError(
            f"shorthand {quoted(text)}: {name} is a float type; "
            + (
                "leave out 'a...' for float activations"
                if letter == "a"
                else f"to leave an op float write {quoted(name)}"
            )
        )
    return name


def _unknown(text: str, letter: str, name: str) -> ConfigError:
    known = registered("dtype")
    return ConfigError(
        f"shorthand {quoted(text)}: {quoted(name)} after {quoted(letter)} is neither bits (1..8) nor a data type"
        f"{nearest(name, known)} (allowed: {listing(known)}); it is {GRAMMAR}, as in {EXAMPLES}"
    )


def _option(text: str, option: str) -> tuple[str, str]:
    if option == "dynamic":
        return "dynamic", option
    group = re.fullmatch(r"g(\d+)", option)
    if group:
        if int(group[1]) < 1:
            raise ConfigError(f"shorthand {quoted(text)}: a group has 1 or more elements, as in g32")
        return "group", group[1]
    known = registered("algorithm")
    if base_name(option) in known:
        return "algorithm", option
    allowed = ["dynamic", "g<group size>", *known]
    raise ConfigError(
        f"shorthand {quoted(text)}: unknown option {quoted(option)}{nearest(option, allowed)} "
        f"(allowed: {listing(allowed)})"
    )
