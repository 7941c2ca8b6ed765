"""What the benchmark of recovery runs: precisions with their goals, and methods, for each network."""

from collections.abc import Sequence
from dataclasses import dataclass

from subbyte import PostTrainingQuantConfig

NONE = "none"  # the label of what min-max gives by itself
FLOAT = "fp32"  # the precision of the float model
SEEDS = (0, 1, 2)
QUICK_SEEDS = (0,)


@dataclass(frozen=True)
class Precision:
    """How a network is quantized.

    Args:
        config: for the library.
        loss: how much worse than fp32 the metric may be; None is reported only.
        remark: what the name does not say.
        methods: labels of those that are run; all that the network has, where empty.
    """

    config: PostTrainingQuantConfig
    loss: float | None = None
    remark: str = ""
    methods: tuple[str, ...] = ()


def _ends_int8(shorthand: str, loss: float | None, *methods: str) -> Precision:
    config = PostTrainingQuantConfig(precision=f"{shorthand}:minmax", first_last="int8")
    return Precision(config, loss, "first and last layer int8", methods)


def _in_blocks(
    shorthand: str, loss: float | None, schemes: tuple[str, ...] = (), methods: tuple[str, ...] = ()
) -> Precision:
    """Weights of the linear maps within the blocks of a Llama, as those quantize it that others publish."""
    types: dict[str, object] = {"Embedding": "fp32"}
    if schemes:
        types["Linear"] = {"weight": {"scheme": list(schemes)}}
    config = PostTrainingQuantConfig(precision=shorthand, op_type_dict=types, op_name_dict={"head": "fp32"})
    return Precision(config, loss, f"linear maps within blocks, {schemes[0] if schemes else 'sym'}", methods)


LONGER = "reconstruct, 1200 steps"
_SINGLES = ("clip", "gptq", "reconstruct")  # the strongest methods beside auto
HQQ_AND_GPTQ = "hqq + gptq"

PRECISIONS: dict[str, dict[str, Precision]] = {
    "resnet20": {
        "w8a8": _ends_int8("w8a8", 0.1, "bias_correction", "gptq"),
        "w4a8": _ends_int8("w4a8", 0.2, "bias_correction", "gptq", "reconstruct"),
        "w4a4": _ends_int8("w4a4", 0.5),
        "w3a3": _ends_int8("w3a3", 2.0, "clip", "gptq", "adaround", "reconstruct", "auto"),
        "w2a8": _ends_int8("w2a8", 4.0, "gptq", "adaround", "reconstruct", "auto"),
    },
    "resnet32": {
        "w8a8": _ends_int8("w8a8", 0.1, "bias_correction", "gptq", "gptq + bias_correction", "reconstruct"),
        "w4a8": _ends_int8("w4a8", 0.2, "gptq", "reconstruct"),
        "w4a4": _ends_int8("w4a4", 0.5, "gptq", "reconstruct", LONGER, "auto"),
        "w3a3": _ends_int8("w3a3", 2.0, "gptq", "reconstruct", "auto"),
        "w2a8": _ends_int8("w2a8", 4.0, "gptq", "reconstruct", "auto"),
    },
    "stories260K": {
        "w4:g32": _in_blocks("w4:g32", 0.05, ("asym",), ("awq", "hqq", "gptq", HQQ_AND_GPTQ)),
        "w3:g32": _in_blocks("w3:g32", 0.30, ("asym",)),
        "w2:g32": _in_blocks("w2:g32:minmax", None, ("asym",), ("gptq", "reconstruct", HQQ_AND_GPTQ)),
        "wternary:g32": _in_blocks("wternary:g32", None, methods=("gptq", "reconstruct")),
        "w4:g32:all": Precision(
            PostTrainingQuantConfig(precision="w4:g32"), None, "embedding and head too, sym", ("hqq", HQQ_AND_GPTQ)
        ),
    },
    "minilm": {
        "w8a8": _ends_int8("w8a8", 0.3, "bias_correction", "smoothquant", "rotate"),
        "w4a8": _ends_int8("w4a8", 0.8, "smoothquant", "rotate", "gptq", "bias_correction", "rotate + bias_correction"),
        "w4a4": _ends_int8("w4a4", None, "bias_correction", "rotate + bias_correction", *_SINGLES, "auto"),
        "w3a3": _ends_int8("w3a3", None, *_SINGLES, "auto"),
        "w2a8": _ends_int8("w2a8", None, *_SINGLES, "auto"),
    },
}


VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    LONGER: ("reconstruct", {"steps": 1200}),
}


def _labelled(*rows: Sequence[str]) -> dict[str, Sequence[str]]:
    return {" + ".join(row) or NONE: row for row in rows}


_FOR_IMAGES = _labelled(
    [],
    ["equalize"],
    ["clip"],
    ["hqq"],
    ["gptq"],
    ["adaround"],
    ["reconstruct"],
    ["batch_norm"],
    ["bias_correction"],
    ["clip", "gptq", "bias_correction"],
    ["auto"],
)
METHODS: dict[str, dict[str, Sequence[str]]] = {
    "resnet20": _FOR_IMAGES,
    "resnet32": _labelled(
        [], ["bias_correction"], ["gptq"], ["gptq", "bias_correction"], ["reconstruct"], [LONGER], ["auto"]
    ),
    "stories260K": _labelled(
        [],
        ["rotate"],
        ["awq"],
        ["hqq"],
        ["gptq"],
        ["adaround"],
        ["reconstruct"],
        ["hqq", "gptq"],
        ["awq", "gptq"],
        ["auto"],
    ),
    "minilm": _labelled(
        [],
        ["smoothquant"],
        ["rotate"],
        ["clip"],
        ["gptq"],
        ["reconstruct"],
        ["bias_correction"],
        ["rotate", "bias_correction"],
        ["auto"],
    ),
}

QUICK_PRECISIONS = {"resnet20": ["w4a4"], "resnet32": ["w4a4"], "stories260K": ["w3:g32"], "minilm": ["w4a8"]}
QUICK_METHODS = [NONE, "bias_correction", "gptq"]
QUICK_OPTIONS = {"adaround": {"steps": 20}, "reconstruct": {"steps": 20}}


def methods(network: str, precision: str) -> list[str]:
    """The labels of those to run, rounding to nearest first."""
    return [NONE, *(PRECISIONS[network][precision].methods or list(METHODS[network])[1:])]


def recover(method: str, network: str, *, quick: bool) -> list[dict[str, object]]:
    """What the library is asked for; ops for which a method has no meaning, as lookups in tables, are passed over."""
    quicker = QUICK_OPTIONS if quick else {}
    asked = [VARIANTS.get(name, (name, {})) for name in METHODS[network][method]]
    return [{name: {"unsupported": "skip", **quicker.get(name, {}), **options}} for name, options in asked]
