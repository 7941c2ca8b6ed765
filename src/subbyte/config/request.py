"""The forms in which a request may come."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from subbyte.capability import read_yaml
from subbyte.config.post_training import PostTrainingQuantConfig
from subbyte.errors import ConfigError
from subbyte.spec import TuneConfig

Request = PostTrainingQuantConfig | TuneConfig
_FORMS = (
    "'default', a shorthand such as 'w4a8', a YAML file (.yaml, .yml), a dictionary, a PostTrainingQuantConfig "
    "or a TuneConfig"
)


def as_request(config: Any) -> Request:
    """Read a request in any of its forms.

    Args:
        config: a precision: `w4a8`, the name of a section, or `default`; the path of a YAML file that holds
            PostTrainingQuantConfig's fields; a dictionary of them, or `{'op': {...}}`, which is a
            TuneConfig; or one of the two itself.

    Raises:
        ConfigError: it is none of these, or as the class it comes to; from a file with its name.
    """
    if isinstance(config, PostTrainingQuantConfig | TuneConfig):
        return config
    if isinstance(config, Mapping):
        return TuneConfig.from_dict(config) if "op" in config else PostTrainingQuantConfig.from_dict(config)
    if isinstance(config, Path) or (isinstance(config, str) and config.endswith((".yaml", ".yml"))):
        return _from_file(Path(config))
    if isinstance(config, str):
        return PostTrainingQuantConfig(precision=config)
    raise ConfigError(f"a request is {_FORMS}, not {_described(config)}")


def sampling_size(request: Request) -> int | None:
    """How many samples of calibration data to use at the most; None is all that is given."""
    size = request.calibration_sampling_size if isinstance(request, PostTrainingQuantConfig) else None
    return max(size) if isinstance(size, list) else size


def _described(config: Any) -> str:
    """What was given instead, and where in it a request is to be found."""
    if isinstance(config, type):
        return f"the class {config.__name__} itself; make one: {config.__name__}(...)"
    holders = {"config": config, "best.config": getattr(config, "best", None)}  # a trial, or what a search returned
    inside = [path for path, holder in holders.items() if isinstance(getattr(holder, "config", None), TuneConfig)]
    return type(config).__name__ + (f"; give its .{inside[0]}" if inside else "")


def _from_file(path: Path) -> Request:
    values = read_yaml(path, ConfigError)
    try:
        return as_request(values)
    except ConfigError as error:
        wrong = [key for key in values if key not in PostTrainingQuantConfig.model_fields]
        place = values.at(wrong[0]) if wrong else str(path)
        raise ConfigError(f"{place}: {error}") from None
