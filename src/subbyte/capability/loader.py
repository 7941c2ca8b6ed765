"""Loading a capability: a built-in's name, a file, a dictionary."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from subbyte.capability.below import named_below
from subbyte.capability.build import TOP_KEYS, build
from subbyte.capability.checks import check_keys
from subbyte.capability.merge import merge, without_nulls
from subbyte.capability.promises import broken_promises
from subbyte.capability.schema import Capability
from subbyte.capability.source import Located, located, read_yaml
from subbyte.errors import CapabilityError, UnimplementedOpWarning, listing, nearest, quoted

_FOLDER = Path(__file__).parent
BUILT_IN = "pytorch_cpu"


def built_in_capabilities() -> dict[str, Path]:
    """The files that come with the library, by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}


def load_capability(source: "str | Path | Mapping[str, Any] | Capability" = BUILT_IN) -> Capability:
    """Read what the operators of a framework or a chip can do.

    Args:
        source: a built-in's name, a YAML file, the same content as a dictionary, or a Capability, which is returned
            as it is. A file that `extends` names is looked up relative to the file that names it (for a dictionary,
            relative to the working directory); its name ends in .yaml or .yml.

    Returns:
        The capability; the data types that it describes are registered.

    Warns:
        UnimplementedOpWarning: the capability lists an op type in a form that Subbyte cannot quantize.

    Raises:
        CapabilityError: with file and line, what is allowed and the nearest spelling.
    """
    if isinstance(source, Capability):
        return source
    if isinstance(source, Mapping):
        return _built(_extended(_from_python(source), Path(), ()), "capability")
    if not isinstance(source, str | Path):
        raise CapabilityError(
            f"a capability is a built-in's name, a file, a dictionary or a Capability, not {type(source).__name__}"
        )
    if isinstance(source, str) and source in built_in_capabilities():
        return _built_in(source)
    path = _existing(str(source), Path(source), "")
    return _built(_read(path, ()), path.stem)


@dataclass(frozen=True)
class _Description:
    """What a file says together with all that it extends.

    Args:
        tree: merged.
        below: what it extends, each merged with what that extends.
    """

    tree: Located
    below: tuple[Located, ...] = ()

    def under(self, over: Located) -> "_Description":
        """With an overlay on it."""
        return _Description(merge(self.tree, over), (*self.below, self.tree))


def _built(description: _Description, name: str) -> Capability:
    capability = replace(build(description.tree, name), below=named_below(description.below))
    for promise in broken_promises(capability):
        warnings.warn(str(promise), UnimplementedOpWarning, stacklevel=3)
    return capability


@cache
def _built_in(name: str) -> Capability:
    return _built(_built_in_description(name), name)


@cache
def _built_in_description(name: str) -> _Description:
    return _read(built_in_capabilities()[name], (), shown=f"{name}.yaml")


def _existing(name: str, path: Path, place: str) -> Path:
    try:
        found = path.is_file()
    except OSError:  # its name is too long, or its folder may not be read
        found = False
    if not found:
        known = built_in_capabilities()
        raise CapabilityError(
            f"{place}no capability file {quoted(str(path))}, and no built-in of that name{nearest(name, known)} "
            f"(built in: {listing(known)})"
        )
    return path


def _read(path: Path, above: tuple[Path, ...], shown: str = "") -> _Description:
    """The description in a file with everything that it extends merged in.

    Args:
        above: the files that extend this one, to refuse a cycle.
    """
    tree = read_yaml(path, shown_as=shown, repeatable="capabilities", merge=merge, may_quote=not above)
    return _extended(tree, path.parent, (*above, path.resolve()))


def _extended(tree: Located, folder: Path, above: tuple[Path, ...]) -> _Description:
    if above[:-1]:
        _check_is_capability(tree)
    check_keys(tree, TOP_KEYS)
    base = tree.get("extends")
    if base is None:
        without_nulls(tree)
        if "fusions" not in tree:  # so that BatchNorms are folded by default
            built_in = _built_in_description(BUILT_IN).tree
            tree.put("fusions", built_in["fusions"], built_in.at("fusions"))
        return _Description(tree)
    place = tree.at("extends")
    if not isinstance(base, str):
        raise CapabilityError(f"{place}: extends: expected a built-in's name or a file, found {quoted(base)}")
    if base in built_in_capabilities():
        return _built_in_description(base).under(tree)
    if not base.endswith((".yaml", ".yml")):
        known = built_in_capabilities()
        raise CapabilityError(
            f"{place}: extends: no capability file {quoted(base)}: name a file that ends in .yaml or .yml, or a "
            f"built-in{nearest(base, known)} (built in: {listing(known)})"
        )
    path = _existing(base, folder / base, f"{place}: extends: ")
    if path.resolve() in above:
        chain = " -> ".join(file.name for file in (*above, path.resolve()))
        raise CapabilityError(f"{place}: extends goes in a circle: {chain}")
    return _read(path, above).under(tree)


def _check_is_capability(tree: Located) -> None:
    """Refuse a file that others extend and that is no capability, without a word of its text, which may be a secret.

    Raises:
        CapabilityError: it has a key that no capability has; with the line.
    """
    for key in tree:
        if key not in TOP_KEYS:
            raise CapabilityError(
                f"{tree.at(key)}: a file that another one extends has a key that no capability file has "
                f"(allowed: {', '.join(TOP_KEYS)})"
            )


def _from_python(source: Mapping[str, Any]) -> Located:
    tree = located(source, "capability dictionary")
    _check_names(tree)
    return tree


def _check_names(value: Any) -> None:
    """Refuse keys that are not text, which the YAML reader refuses on its own."""
    if isinstance(value, Located):
        for key in value:
            if not isinstance(key, str):
                raise CapabilityError(f"{value.place}: a key must be a name, not {quoted(key)}")
    for item in value.values() if isinstance(value, Located) else value if isinstance(value, list) else ():
        _check_names(item)
