"""YAML text and Python dictionaries as one kind of tree that knows where every key was written."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from subbyte.errors import CapabilityError, SubbyteError, listing, quoted

# What files of others may cost. The built-in capability has 33 kB, 35,406 values and 8 levels.
_LARGEST = 1 << 18  # bytes: some seconds of parsing
_MOST_VALUES = 100_000  # with those of aliases
_DEEPEST = 50  # levels
_LONGEST_TEXT = 10_000  # characters of a value
_LONGEST_KEY = 200  # characters
_INTEGER_BITS = 64
_TAGS = "tag:yaml.org,2002:"
_COLLECTIONS = ("map", "seq")
_SCALARS = {"str": "text", "int": "integer", "float": "number", "bool": "boolean (true or false)", "null": "null"}
_QUOTED = re.compile(r"'.*'", re.DOTALL)  # text of the file in messages of the YAML reader

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
    shown_as: str = "",
    repeatable: str = "",
    merge: Merge | None = None,
    may_quote: bool = True,
) -> Located:
    """Read a YAML file whose top is a mapping.

    Args:
        path: a regular file of at most 256 KiB, in UTF-8.
        error: what is raised.
        shown_as: what messages call the file. Default: its path.
        repeatable: the key of the top-level mapping whose own keys may be given twice ...
        merge: ... and the function that then combines the two values.
        may_quote: whether messages may quote the file. A file that another file names may be a secret. Default: True.

    Raises:
        error: it cannot be read, is no YAML, is too large or nested too deeply, gives a key twice, has values that are
            not text, numbers, true, false, null, lists or mappings, or is no mapping; with the line.
    """
    file = shown_as or str(path)
    text = _text(path, file, error)
    yaml = YAML(typ="safe", pure=True)
    try:
        tree = _Reader(yaml, file, error, repeatable, merge, may_quote).read(yaml.compose(text))
    except MarkedYAMLError as reason:
        mark = reason.problem_mark or reason.context_mark
        raise error(f"{_place(file, mark)}: not readable as YAML: {_said(reason, may_quote)}") from None
    except YAMLError as reason:
        raise error(f"{file}: not readable as YAML: {_short(str(reason).splitlines()[0])}") from None
    except (ValueError, OverflowError):  # of chr() and int(), to which the YAML reader passes any escape and directive
        raise error(
            f"{file}: not readable as YAML: it has an escape beyond \\U0010FFFF, or a directive with a longer number "
            "than Python reads; correct it"
        ) from None
    except RecursionError:
        raise error(f"{file}: nested too deeply; a file may hold {_DEEPEST} levels") from None
    if not isinstance(tree, Located):
        found = "nothing" if tree is None else quoted(tree) if may_quote else "another value"
        raise error(f"{file}:1: expected a mapping of keys to values, found {found}")
    return tree


def _text(path: Path, file: str, error: type[SubbyteError]) -> str:
    try:
        if not path.is_file():  # nothing may ever be written to a FIFO
            raise error(f"{file}: cannot be read ({'no regular file' if path.exists() else 'there is no such file'})")
        with path.open("rb") as opened:
            content = opened.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise error(f"{file}: larger than {_LARGEST:,} bytes, the limit of a YAML file")
        return content.decode("utf-8")
    except UnicodeDecodeError as reason:
        line = content[: reason.start].count(b"\n") + 1
        raise error(f"{file}:{line}: cannot be read (not UTF-8)") from None
    except (OSError, ValueError) as reason:
        said = getattr(reason, "strerror", None) or str(reason)
        raise error(f"{_short(file)}: cannot be read ({said})") from None


def _said(reason: MarkedYAMLError, may_quote: bool) -> str:
    mark = reason.problem_mark or reason.context_mark
    problem = _short(str(reason.problem or reason.context))
    problem = problem if may_quote else _QUOTED.sub("'...'", problem)
    return problem if mark is None else f"{problem} (column {mark.column + 1})"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}..."


def _place(file: str, mark: Any) -> Place:
    return Place(file, None if mark is None else mark.line + 1)


def _kind(node: Node) -> str:
    return str(node.tag).removeprefix(_TAGS)


class _Reader:
    """Turns YAML nodes into plain values; an anchored node becomes one object, shared by its aliases."""

    def __init__(
        self,
        yaml: YAML,
        file: str,
        error: type[SubbyteError],
        repeatable: str,
        merge: Merge | None,
        may_quote: bool,
    ) -> None:
        self._quoted = quoted if may_quote else lambda value: "another value"
        self._construct = yaml.constructor.construct_object
        self._file = file
        self._error = error
        self._repeatable = repeatable
        self._merge = merge
        self._done: dict[int, Any] = {}
        self._sizes: dict[int, tuple[int, int]] = {}  # values and levels of each finished node, aliases followed
        self._open: set[int] = set()
        self._merged = 0  # keys that << has copied

    def read(self, node: Node | None, path: tuple[str, ...] = ()) -> Any:
        if node is None:
            return None
        if id(node) in self._done:
            return self._done[id(node)]
        if id(node) in self._open:
            raise self._error(f"{self._at(node)}: an alias stands inside the value that it names")
        self._check_kind(node)
        self._open.add(id(node))
        if isinstance(node, MappingNode):
            value: Any = self._mapping(node, path)
        elif isinstance(node, SequenceNode):
            value = [self.read(child, (*path, "[]")) for child in node.value]
        else:
            value = self._scalar(node)
        self._open.discard(id(node))
        self._sizes[id(node)] = self._size(node)
        self._done[id(node)] = value
        return value

    def _size(self, node: Node) -> tuple[int, int]:
        """Return how many values and levels a finished node holds; those of an alias count each time."""
        if not isinstance(node, MappingNode | SequenceNode):
            return 1, 0
        children = [child[1] for child in node.value] if isinstance(node, MappingNode) else node.value
        sizes = [self._sizes[id(child)] for child in children]
        values, levels = 1 + sum(each[0] for each in sizes), 1 + max((each[1] for each in sizes), default=0)
        if values > _MOST_VALUES or levels > _DEEPEST:
            raise self._error(
                f"{self._at(node)}: a file may hold {_MOST_VALUES:,} values and {_DEEPEST} levels, with those of its "
                f"aliases; got {values:,} values and {levels} levels"
            )
        return values, levels

    def _check_kind(self, node: Node) -> None:
        kind = _kind(node)
        allowed = _COLLECTIONS if isinstance(node, MappingNode | SequenceNode) else _SCALARS
        if kind not in allowed:
            raise self._error(
                f"{self._at(node)}: a value of the YAML type {self._quoted(kind)} is not supported (allowed: "
                f"{listing((*_COLLECTIONS, *_SCALARS))}); put it in quotes if it is text"
            )

    def _scalar(self, node: Node) -> Any:
        """Return text, a number, true, false or null."""
        if len(node.value) > _LONGEST_TEXT:
            raise self._error(
                f"{self._at(node)}: a value may have {_LONGEST_TEXT:,} characters, got {len(node.value):,}"
            )
        try:
            value = self._construct(node)
        except (ValueError, TypeError, LookupError, ArithmeticError):
            raise self._error(f"{self._at(node)}: {self._quoted(node.value)} is no {_SCALARS[_kind(node)]}") from None
        if isinstance(value, int) and value.bit_length() >= _INTEGER_BITS:
            raise self._error(
                f"{self._at(node)}: an integer must fit in {_INTEGER_BITS} bits, got {self._quoted(node.value)}"
            )
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
        self._check_kind(node)
        key = None if isinstance(node, MappingNode | SequenceNode) else self._scalar(node)
        if not isinstance(key, str):
            found = f"a {node.id}" if isinstance(node, MappingNode | SequenceNode) else self._quoted(key)
            raise self._error(f"{self._at(node)}: a key must be a name, not {found}; put it in quotes")
        if len(key) > _LONGEST_KEY or not key.isprintable():
            raise self._error(
                f"{self._at(node)}: a key may have {_LONGEST_KEY} characters, none of them a control character, "
                f"got {self._quoted(key)}"
            )
        return key

    def _inherit(self, into: Located, node: Node, path: tuple[str, ...]) -> None:
        value = self.read(node, path)
        for mapping in value if isinstance(value, list) else [value]:
            if not isinstance(mapping, Located):
                raise self._error(f"{self._at(node)}: << merges a mapping, not {self._quoted(mapping)}")
            self._merged += len(mapping)
            if self._merged > _MOST_VALUES:
                raise self._error(f"{self._at(node)}: a file may merge {_MOST_VALUES:,} keys by <<, got more")
            for key, item in mapping.items():
                if key not in into:
                    into.put(key, item, mapping.at(key))

    def _again(self, own: Located, key: str, value: Any, place: Place, path: tuple[str, ...]) -> Any:
        earlier = own[key]
        mergeable = isinstance(earlier, Located) and isinstance(value, Located)
        if self._merge is not None and path == (self._repeatable,) and mergeable:
            return self._merge(earlier, value)
        raise self._error(f"{place}: the key {self._quoted(key)} is given twice, first at {own.at(key)}")
