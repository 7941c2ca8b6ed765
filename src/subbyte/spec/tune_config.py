"""One configuration of a whole model: the currency between configuration, tuning, adaptor and report."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from subbyte.errors import ConfigError, quoted, refuses_misspelt
from subbyte.spec.op import OpConfig
from subbyte.spec.tensor_spec import check_keys

OpKey = tuple[str, str]


@refuses_misspelt(ConfigError)
@dataclass(frozen=True)
class TuneConfig:
    """`{'op': {(name, type): OpConfig}}`: what every op of a model gets, decided before data is seen.

    Args:
        op: by (name, type).
        sources: for every op and field, the rule that set it (`explain` prints it); not part of equality.

    Raises:
        ConfigError: `op` is no mapping of (name, type) to OpConfig (`from_dict` reads plain dictionaries too).
    """

    op: Mapping[OpKey, OpConfig]
    sources: Mapping[OpKey, Mapping[str, str]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.op, Mapping):
            raise ConfigError(f"tune configuration: op must map (name, type) to an OpConfig, not be {quoted(self.op)}")
        for key, config in self.op.items():
            if not isinstance(key, tuple) or _op_key(key) != key or not isinstance(config, OpConfig):
                raise ConfigError(
                    f"tune configuration: op maps (name, type) to an OpConfig, and {quoted(key)} to {quoted(config)} "
                    "is none; TuneConfig.from_dict({'op': ...}) reads dictionaries"
                )
        for rules in (self.sources, *(self.sources.values() if isinstance(self.sources, Mapping) else ())):
            if not isinstance(rules, Mapping):
                raise ConfigError(
                    f"tune configuration: sources map (name, type) to rules by field, not {quoted(rules)}"
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TuneConfig":
        """Build from `{'op': {('conv', 'Conv2d'): {'weight': {...}, ...}}}`; keys may be written as text.

        Raises:
            ConfigError: a key that is no (name, type) pair, or as for OpConfig.
        """
        check_keys(values, ["op"], "tune configuration")
        if not isinstance(values.get("op"), Mapping):
            raise ConfigError("tune configuration: 'op' must map (name, type) to a configuration")
        configs = {}
        for key, config in values["op"].items():
            name, op_type = _op_key(key)
            try:
                built = config if isinstance(config, OpConfig) else OpConfig.from_dict(config)
            except ConfigError as error:
                raise ConfigError(f"op {quoted(name)} ({op_type}): {error}") from None
            configs[name, op_type] = built
        return cls(configs)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with tuples as keys; `from_dict` gives an equal configuration."""
        return {"op": {key: config.to_dict() for key, config in self.op.items()}}


def _op_key(key: Any) -> OpKey:
    if isinstance(key, str) and key.startswith("("):
        try:
            key = ast.literal_eval(key)
        except (ValueError, SyntaxError):
            raise ConfigError(f"tune configuration: {quoted(key)} is no (name, type) pair") from None
    if not (isinstance(key, tuple | list) and len(key) == 2 and all(isinstance(part, str) for part in key)):
        raise ConfigError(f"tune configuration: {quoted(key)} is no (name, type) pair")
    return (key[0], key[1])
