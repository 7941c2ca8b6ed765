"""The form of a checkpoint's header: every field is required, and has the type that is written here."""

from collections.abc import Iterator
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from subbyte.errors import CheckpointError, quoted
from subbyte.export.schema_errors import described
from subbyte.spec import Position, QuantMode, Role

FORMAT = 4

Text = Annotated[str, Field(max_length=100_000)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
# JSON has no number for what is not finite.
Figure = Annotated[float, Field(allow_inf_nan=False)] | Literal["Infinity", "-Infinity", "NaN"]
Share = Annotated[float, Field(ge=0, le=1)]
Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Part(BaseModel):
    """Base of all parts of a header: no field more, none fewer, nothing converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class IntegerFields(Part):
    """An integer data type."""

    bits: Count
    signed: bool
    narrow: bool
    algorithm: Text


class CodebookFields(Part):
    """A data type that is a table of values."""

    bits: Count
    values: Annotated[list[float], Field(max_length=256)]
    algorithm: Text


class FloatFields(Part):
    """A float data type."""

    bits: Count


class SpecFields(Part):
    """A TensorSpec."""

    dtype: Text
    scheme: Text
    granularity: Annotated[str, Field(pattern=r"^(per_tensor|per_channel|per_token|per_group\([0-9]{1,9}\))$")]
    axis: int | None
    algorithm: Text
    scale_format: Text
    quant_min: int | None
    quant_max: int | None


class OpConfigFields(Part):
    """An OpConfig."""

    weight: SpecFields | None
    activation: SpecFields | None
    bias: SpecFields | None
    output: SpecFields | None
    quant_mode: QuantMode
    accumulator: Text | None


class WeightFields(Part):
    """What the packed weight of an op is."""

    spec: SpecFields
    shape: list[Count]


class TensorFields(Part):
    """What a tensor of the file is; `finite` tells whether it holds neither NaN nor infinity."""

    dtype: Text
    shape: list[Count]
    finite: bool


class CallFields(Part):
    """A recorded Call."""

    site: Annotated[str, Field(pattern=r"^(.+:[0-9]{1,9}/[0-9]{1,9})?$", max_length=100_000)]
    producers: list[Text | None]
    quantizable: bool


class OpFields(Part):
    """A recorded Op."""

    name: Text
    type: Text
    role: Role
    kind: Literal["module", "function"]
    scope: Text
    calls: list[CallFields]
    positions: list[Position]
    depthwise: bool
    macs: Count
    norm: Text
    fused: bool
    parameters: list[Text]
    unfollowed: bool


Key = TypeVar("Key")
Value = TypeVar("Value")
_List = Strict(False)  # JSON has lists only: a tuple may be made of one
OpKeyFields = Annotated[tuple[Text, Text], _List]


class Shared(Part, Generic[Key, Value]):
    """A mapping whose equal values are written once: each key stands beside the index of its value."""

    values: list[Value]
    keys: list[Annotated[tuple[Key, Count], _List]]

    @model_validator(mode="after")
    def _indexes_and_keys_are_right(self) -> "Shared[Key, Value]":
        for key, index in self.keys:
            if index >= len(self.values):
                raise ValueError(f"{key!r} has the value {index} of {len(self.values)}")
        if len({key for key, _ in self.keys}) != len(self.keys):
            raise ValueError("a key stands twice")
        return self

    def items(self) -> Iterator[tuple[Key, Value]]:
        for key, index in self.keys:
            yield key, self.values[index]


Scalar = bool | int | Figure | Text | None


class _Open(BaseModel):
    """Base of parts that are shown and nothing else: fields of later versions are passed on."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    __pydantic_extra__: dict[str, Scalar | list[Text] | dict[Text, Scalar]]


class RowFields(_Open):
    """A row of the summary."""

    name: Text
    type: Text
    requested: Text
    realized: Text
    float_because: Text
    weight_dtype: Text | None
    activation_dtype: Text
    weight_bits: Count
    activation_bits: Count
    is_quantized: bool
    params: Count
    bytes: Count
    float_bytes: Count
    macs: Count | None
    kernel: Text
    weight_sqnr: Figure | None
    activation_sqnr: Figure | None
    positions: list[Text]


class TotalsFields(_Open):
    """The totals of the summary."""

    params: Count
    params_by_bits: dict[Text, Count]
    quantized_params_share: Share
    float_bytes: Count
    bytes: Count
    compression: Ratio
    macs: Count
    macs_share: dict[Text, Share]
    low_bit_macs_share: Share
    quantized_macs_share: Share


class ReportFields(Part):
    """The summary that the model was saved with."""

    rows: list[RowFields]
    totals: TotalsFields


class Header(Part):
    """Everything of a checkpoint that is not a tensor."""

    format: int
    fingerprint: Shared[Text, dict[Text, Text]]
    float_bytes: Count
    dtypes: dict[Text, IntegerFields | CodebookFields | FloatFields]
    config: Shared[OpKeyFields, OpConfigFields]
    sources: Shared[OpKeyFields, dict[Text, Text]]
    ops: list[OpFields]
    order: dict[Text, list[OpKeyFields]]
    read_by_code: list[Text]
    readers: list[Text]
    found_later: dict[Text, OpConfigFields] | None
    inputs: dict[Text, list[Text]]
    weight_sqnr: dict[Text, Figure]
    activation_sqnr: dict[Text, Figure]
    moved_by: list[Text]
    weights: Shared[Text, WeightFields]
    tensors: dict[Text, TensorFields]
    aliases: dict[Text, Text]
    versions: dict[Text, int | None]
    report: ReportFields


def header_of(values: dict[str, Any]) -> Header:
    """Read a header.

    Raises:
        CheckpointError: it has another format, or a field is missing, unknown or of another type; naming each.
    """
    if values.get("format") != FORMAT or isinstance(values["format"], bool | float):
        raise CheckpointError(
            f"the checkpoint has format {quoted(values.get('format'))}; this version of Subbyte reads format {FORMAT}"
        )
    try:
        return Header.model_validate(values)
    except ValidationError as error:
        raise CheckpointError(f"the header of the checkpoint is damaged: {described(error)}") from None
