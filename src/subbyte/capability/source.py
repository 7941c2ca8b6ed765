"""YAML text and Python dictionaries as one kind of tree that knows where every key was written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from subbyte.errors import CapabilityError, SubbyteError

Merge = Callable[["Located", "Located"], "Located"]


@dataclass(frozen=True)
class Place:
    """Where something was written: a file and a line counted from 1; no line where it came from Python."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class Located(dict[str, Any]):
    """A mapping that knows where it and each of its keys were written."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.places: dict[str, Place] = {}

    def put(self, key: str, value: Any, place: Place) -> None:
        self[key] = value
        self.places[key] = place

    def at(self, key: str) -> Place:
        """Where a key was written; where it is missing, the mapping it is missing from."""
        return self.places.get(key, self.place)


def located(values: Mapping[str, Any], file: str) -> Located:
    """The same data with every mapping a `Located`, for input that is a Python dictionary."""
    tree = Located(Place(file))
    for key, value in values.items():
        tree.put(key, _located(value, file), Place(file))
    return tree


def _located(value: Any, file: str) -> Any:
    if isinstance(value, Mapping):
        return located(value, file)
    return [_located(item, file) for item in value] if isinstance(value, list | tuple) else value


def read_yaml(
    path: Path,
    error: type[SubbyteError] = CapabilityError,
    shown: str = "",
    repeatable: str = "",
    merge: Merge | None = None,
) -> Located:
    """Read a YAML file whose top is a mapping.

    Args:
        path: the file, in UTF-8.
        error: what is raised.
        shown: what messages call the file; its path unless given.
        repeatable: the key of the top-level mapping whose own keys may be given twice ...
        merge: ... and the function that then combines the two values.

    Raises:
        error: it cannot be read, is no YAML, gives a key twice, or is no mapping; with the line.
    """
    file = shown or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise error(f"{file}: cannot be read ({reason})") from None
    yaml = YAML(typ="safe", pure=True)
    try:
        tree = _Reader(yaml, file, error, repeatable, merge).read(yaml.compose(text))
    except MarkedYAMLError as reason:
        mark = reason.problem_mark or reason.context_mark
        raise error(f"{_place(file, mark)}: not readable as YAML: {reason.problem or reason.context}") from None
    except YAMLError as reason:
        raise error(f"{file}: not readable as YAML: {str(reason).splitlines()[0]}") from None
    except RecursionError:
        raise error(f"{file}: nested too deeply") from None
    if not isinstance(tree, Located):
        raise error(f"{file}:1: expected a mapping of keys to values, found {'nothing' if tree is None else tree!r}")
    return tree


def _place(file: str, mark: Any) -> Place:
    return Place(file, None if mark is None else mark.line + 1)


class _Reader:
    """Turns YAML nodes into plain values; an anchored node becomes one object, shared by its aliases."""

    def __init__(self, yaml: YAML, file: str, error: type[SubbyteError], repeatable: str, merge: Merge | None) -> None:
        self._scalar = yaml.constructor.construct_object
        self._file = file
        self._error = error
        self._repeatable = repeatable
        self._merge = merge
        self._done: dict[int, Any] = {}
        self._open: set[int] = set()

    def read(self, node: Node | None, path: tuple[str, ...] = ()) -> Any:
        if node is None:
            return None
        if id(node) in self._done:
            return self._done[id(node)]
        if id(node) in self._open:
            raise self._error(f"{self._at(node)}: an alias stands inside the value that it names")
        self._open.add(id(node))
        if isinstance(node, MappingNode):
            value: Any = self._mapping(node, path)
        elif isinstance(node, SequenceNode):
            value = [self.read(child, (*path, "[]")) for child in node.value]
        else:
            value = self._scalar(node)
        self._open.discard(id(node))
        self._done[id(node)] = value
        return value

    def _at(self, node: Node) -> Place:
        return _place(self._file, node.start_mark)

    def _mapping(self, node: MappingNode, path: tuple[str, ...]) -> Located:
        own, inherited = Located(self._at(node)), Located(self._at(node))
        for key_node, value_node in node.value:
            if key_node.value == "<<" and key_node.style is None:
                self._inherit(inherited, value_node, path)
                continue
            key, place = self._key(key_node), self._at(key_node)
            value = self.read(value_node, (*path, key))
            if key in own:
                value = self._again(own, key, value, place, path)
            own.put(key, value, place)
        for key, value in inherited.items():
            if key not in own:
                own.put(key, value, inherited.at(key))
        return own

    def _key(self, node: Node) -> str:
        key = self._scalar(node) if not isinstance(node, MappingNode | SequenceNode) else node.value
        if not isinstance(key, str):
            raise self._error(f"{self._at(node)}: a key must be a name, not {key!r}; put it in quotes")
        return key

    def _inherit(self, into: Located, node: Node, path: tuple[str, ...]) -> None:
        value = self.read(node, path)
        for mapping in value if isinstance(value, list) else [value]:
            if not isinstance(mapping, Located):
                raise self._error(f"{self._at(node)}: << merges a mapping, not {mapping!r}")
            for key, item in mapping.items():
                if key not in into:
                    into.put(key, item, mapping.at(key))

    def _again(self, own: Located, key: str, value: Any, place: Place, path: tuple[str, ...]) -> Any:
        earlier = own[key]
        mergeable = isinstance(earlier, Located) and isinstance(value, Located)
        if self._merge is not None and path == (self._repeatable,) and mergeable:
            return self._merge(earlier, value)
        raise self._error(f"{place}: the key {key!r} is given twice, first at {own.at(key)}")
