"""The shorthand's grammar."""

import pytest

from subbyte.capability import Shorthand, parse_shorthand
from subbyte.dtypes import DataType, register_dtype
from subbyte.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("w4", Shorthand("w4", "int4")),
        ("w1", Shorthand("w1", "bint1")),
        ("w1a1", Shorthand("w1a1", "bint1", "bint1")),
        ("w4a8", Shorthand("w4a8", "int4", "uint8")),
        ("wnf4", Shorthand("wnf4", "nf4")),
        ("wbint1a8", Shorthand("wbint1a8", "bint1", "uint8")),
        ("wint4auint8", Shorthand("wint4auint8", "int4", "uint8")),
        ("wfp4_e2m1a8", Shorthand("wfp4_e2m1a8", "fp4_e2m1", "uint8")),
        ("w8aint8", Shorthand("w8aint8", "int8", "int8")),
        ("w4a4:mse", Shorthand("w4a4:mse", "int4", "uint4", algorithm="mse")),
        ("w4a8:dynamic:g128", Shorthand("w4a8:dynamic:g128", "int4", "uint8", True, 128)),
        (
            "w4:g32:percentile(99.9)",
            Shorthand("w4:g32:percentile(99.9)", "int4", None, False, 32, "percentile(99.9)"),
        ),
    ],
)
def test_reads(text: str, expected: Shorthand) -> None:
    assert parse_shorthand(text) == expected


def test_own_types_match_longest_first() -> None:
    register_dtype(DataType("shortt3", bits=3, signed=True))
    register_dtype(DataType("shortt3a4", bits=4, signed=True))
    assert parse_shorthand("wshortt3a4").weight == "shortt3a4"
    assert parse_shorthand("wshortt3a4").activation is None
    both = parse_shorthand("wshortt3a8")
    assert (both.weight, both.activation) == ("shortt3", "uint8")


@pytest.mark.parametrize(("text", "mode"), [("w4", "weight_only"), ("w4a8", "static"), ("w4a8:dynamic", "dynamic")])
def test_mode(text: str, mode: str) -> None:
    assert parse_shorthand(text).quant_mode == mode


@pytest.mark.parametrize(
    ("text", "weight", "activation"),
    [
        ("w4a4:mse", "mse", "mse"),
        ("w4a4:dynamic:mse", "mse", None),
        ("w1a8:mean_abs", "mean_abs", None),
        ("wternarya8:twn", "twn", None),
        ("w4a8:moving_average_minmax", None, "moving_average_minmax"),
        ("w4:mse", "mse", None),
    ],
)
def test_where_the_algorithm_goes(text: str, weight: str | None, activation: str | None) -> None:
    fields = parse_shorthand(text).fields()
    assert fields.get("weight.algorithm") == weight
    assert fields.get("activation.algorithm") == activation


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4a8", "cannot be read: it is w<bits or type>"),
        ("", "cannot be read"),
        ("w", "neither bits"),
        ("wint44", "did you mean 'int4'"),
        ("w4b8", "neither bits"),
        ("w4a", "'' after 'a' is neither bits"),
        ("w4ablah", "'blah' after 'a' is neither bits"),
        ("w9", "bits are 1..8"),
        ("w0a8", "bits are 1..8"),
        ("w32", "to leave an op float write 'fp32'"),
        ("w4a16", "leave out 'a...'"),
        ("wbf16", "bf16 is a float type"),
        ("w4afp32", "fp32 is a float type"),
        ("w4:dynamic", "write 'w4a8:dynamic'"),
        ("w4a8:dinamic", "unknown option 'dinamic'; did you mean 'dynamic'?"),
        ("w4a8:mse:kl", "'kl' comes after 'mse'"),
        ("w4a8:g0", "1 or more elements"),
        ("w4a8:g32:g64", "'g64' comes after '32'"),
        ("w4:moving_average_minmax", "there are none"),
        ("W4A8", "cannot be read"),
        ("W4A8:dynamic", "did you mean 'w4a8:dynamic'?"),
    ],
)
def test_refuses(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_shorthand(text)
    assert message in str(caught.value)
