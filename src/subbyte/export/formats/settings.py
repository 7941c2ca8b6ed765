"""What a checkpoint says of its quantization, held against a schema."""

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from subbyte.errors import CheckpointError

# -1 stands for all inputs of a row.
GroupSize = Literal[-1] | Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """Base of schemas of others: keys that are not read here are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


Kind = TypeVar("Kind", bound=Settings)


def checked(kind: type[Kind], values: Any) -> Kind:
    """Read settings.

    Raises:
        CheckpointError: a key is missing, or has a value that is not read; naming each.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        places = [(".".join(map(str, one["loc"])), one["input"], one["msg"].lower()) for one in error.errors()]
        found = "; ".join(f"{place} = {value!r} ({message})" for place, value, message in places)
        raise CheckpointError(f"its quantization_config cannot be read: {found}") from None


def matches(pattern: str, name: str) -> bool:
    """Whether a name begins as a regular expression of the settings says.

    Raises:
        CheckpointError: it is none.
    """
    try:
        return re.match(pattern, name) is not None
    except re.error as error:
        raise CheckpointError(f"its quantization_config has the pattern {pattern!r}: {error}") from None
