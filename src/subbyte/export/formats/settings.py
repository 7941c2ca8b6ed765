"""What a checkpoint says of its quantization, held against a schema."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from subbyte.errors import CheckpointError, quoted
from subbyte.spec.patterns import NamePatterns, PatternError

_MOST_PROBLEMS = 5  # that a message lists

# -1 stands for all inputs of a row.
GroupSize = Literal[-1] | Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """Base of schemas of others: keys that are not read here are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    _patterns: NamePatterns = PrivateAttr(default_factory=NamePatterns)

    def matches(self, pattern: str, name: str) -> bool:
        """Return whether a name begins as a regular expression of the settings says.

        Raises:
            CheckpointError: it is no regular expression, or the patterns of the settings take too long to match.
        """
        try:
            return self._patterns.matches(pattern, name, whole=False)
        except PatternError as error:
            raise CheckpointError(f"its quantization_config has the pattern {quoted(pattern)}: {error}") from None


Kind = TypeVar("Kind", bound=Settings)


def checked(kind: type[Kind], values: Any) -> Kind:
    """Read settings.

    Raises:
        CheckpointError: a key is missing, or has a value that is not read; naming each.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)[:_MOST_PROBLEMS]
        places = [(quoted(".".join(map(str, one["loc"]))), one["input"], one["msg"].lower()) for one in problems]
        found = "; ".join(f"{place[1:-1]} = {quoted(value)} ({message})" for place, value, message in places)
        raise CheckpointError(f"its quantization_config cannot be read: {found}") from None
