"""The YAML file and the overrides: found, read strictly, flattened to one value a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path as FilePath
from typing import Final

import yaml

from coord.config.environment import CONFIG_VARIABLE, PlaceholderError, Surroundings, resolve_placeholders
from coord.config.keys import TREE, Branch, Child, Leaf, Listing, nearest_known, uniform
from coord.config.layers import Layer, put
from coord.config.problems import Findings, Path, dotted
from coord.config.strangers import KOTLIN_ADVICE, is_kotlin_only, reason_never

ROOT: Final = "coordinator"
DEFAULT_FILE: Final = "coordinator.yaml"
DOCUMENT_BYTES_MAX: Final = 1024 * 1024
NESTING_MAX: Final = 8
SEARCHED_MAX: Final = 10_000

Resolve = Callable[[Path, str], tuple[str, str]]
"""From a place and a raw text to the text with its placeholders replaced, and its origin."""


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:  # noqa: FBT001, FBT002 - PyYAML's
        """Build a mapping; raises ConstructorError at the second of two equal keys."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value != "<<":
                if key_node.value in seen:
                    message = f"the key {key_node.value!r} stands twice in one mapping"
                    raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


def find_file(named: FilePath | None, surroundings: Surroundings, directory: FilePath) -> FilePath | None:
    """Return the file to read: the named one, `$COORDINATOR_CONFIG`, `./coordinator.yaml` if it is there, or None."""
    if named is not None:
        return named
    told = surroundings.variables.get(CONFIG_VARIABLE, "").strip()
    if told:
        return FilePath(told)
    beside = directory / DEFAULT_FILE
    return beside if beside.exists() else None


def read_document(file: FilePath, findings: Findings) -> Mapping[object, object]:
    """Return the mapping under `coordinator`; what cannot be read becomes a problem, without quoting the file."""
    loaded = _parsed(file, findings)
    if loaded is None:
        return {}
    if not isinstance(loaded, Mapping):
        findings.refuse("", f"the file {str(file)!r} must be a mapping with the root key `{ROOT}`")
        return {}
    for key in loaded:
        if key != ROOT:
            near = nearest_known(str(key))
            hint = f"; did you mean `{ROOT}.{near}`?" if near else ""
            findings.refuse(str(key), f"only the root key `{ROOT}` is read{hint}")
    inner = loaded.get(ROOT)
    if inner is not None and not isinstance(inner, Mapping):
        findings.refuse(ROOT, "a mapping of keys is expected")
        return {}
    return inner or {}


def _parsed(file: FilePath, findings: Findings) -> object:
    try:
        with file.open("rb") as opened:
            content = opened.read(DOCUMENT_BYTES_MAX + 1)
        if len(content) > DOCUMENT_BYTES_MAX:
            findings.refuse("", f"the file {str(file)!r} has more than {DOCUMENT_BYTES_MAX} bytes")
            return None
        loaded: object = yaml.load(content, Loader=_StrictLoader)  # noqa: S506 - a subclass of the safe loader
    except OSError as error:
        findings.refuse("", f"cannot read the configuration file {str(file)!r}: {error.strerror or error}")
        return None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        findings.refuse("", f"the file {str(file)!r} is not valid YAML: {_where(error)}")
        return None
    return loaded


def _where(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem}, line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
    return "bad characters, bad values or too deep nesting"


def file_layer(file: FilePath, surroundings: Surroundings) -> Layer:
    """Return what the file says, with its placeholders replaced."""
    findings = surroundings.findings

    def resolve(path: Path, text: str) -> tuple[str, str]:
        try:
            resolved, names = resolve_placeholders(text, surroundings, dotted(path), blank_is_unset=path[0] == "redis")
        except PlaceholderError as error:
            findings.refuse(dotted(path), f"{error}; from {file}")
            return "", str(file)
        return resolved, f"{file} (${{{', '.join(names)}}})" if names else str(file)

    layer = Layer()
    _Flattening(layer, findings, resolve, str(file)).section(TREE, read_document(file, findings), ())
    return layer


def override_layer(overrides: Mapping[str, object], findings: Findings, origin: str) -> Layer:
    """Return what the caller insists on, keyed by dotted names: `{"streams.provisioning-enabled": True}`."""
    tree: dict[object, object] = {}
    for key, value in overrides.items():
        *sections, last = key.split(".")
        place = tree
        for part in sections:
            deeper = place.setdefault(part, {})
            if not isinstance(deeper, dict):
                message = f"overrides contradict each other at {key}"
                raise TypeError(message)
            place = deeper
        place[last] = value
    layer = Layer()
    _Flattening(layer, findings, lambda _, text: (text, origin), origin).section(TREE, tree, ())
    return layer


class _Flattening:
    """One walk over a nested mapping beside the tree of keys."""

    def __init__(self, layer: Layer, findings: Findings, resolve: Resolve, origin: str) -> None:
        self.layer = layer
        self.findings = findings
        self.resolve = resolve
        self.origin = origin
        self.searched = 0

    def section(self, branch: Branch, given: object, path: Path) -> None:
        """Take each key of a section."""
        if given is None:
            return
        if not isinstance(given, Mapping):
            self.findings.refuse(dotted(path), f"a mapping of keys is expected; from {self.origin}")
            return
        seen: dict[str, str] = {}
        for raw_key, value in given.items():
            key = str(raw_key)
            child = branch.children.get(uniform(key))
            if child is None:
                self.unknown((*path, key), value)
            elif child.name in seen:
                self.findings.refuse(
                    dotted((*path, child.name)), f"it is given twice, as {seen[child.name]!r} and as {key!r}; keep one"
                )
            else:
                seen[child.name] = key
                self.child(child, value, (*path, child.name))

    def child(self, child: Child, value: object, path: Path) -> None:
        """Take one known key."""
        if isinstance(child.node, Branch):
            self.section(child.node, value, path)
        elif isinstance(child.node, Listing):
            self.listing(child.node, value, path)
        else:
            self.value(child.node, value, path)

    def listing(self, listing: Listing, value: object, path: Path) -> None:
        """Take a list of sections as a whole."""
        if value is None:
            return
        if not isinstance(value, list | tuple):
            self.findings.refuse(dotted(path), f"a list is expected; from {self.origin}")
            return
        self.layer.whole_lists[path] = self.origin
        for index, entry in enumerate(value):
            if entry is None:
                self.findings.refuse(dotted((*path, index)), f"a mapping of keys is expected; from {self.origin}")
            self.section(listing.item, entry, (*path, index))

    def value(self, leaf: Leaf, value: object, path: Path) -> None:
        """Take a value, or a list of them, with the placeholders in its texts replaced."""
        if isinstance(value, Mapping):
            self.findings.refuse(dotted(path), f"a value is expected, not a mapping: {leaf.rule.allowed}; from {self.origin}")
        elif isinstance(value, str):
            text, origin = self.resolve(path, value)
            put(self.layer, path, text, origin, self.findings)
        elif isinstance(value, list) and leaf.rule.is_list:
            entries = [self.resolve(path, entry)[0] if isinstance(entry, str) else entry for entry in value]
            put(self.layer, path, entries, self.origin, self.findings)
        else:
            put(self.layer, path, value, self.origin, self.findings)

    def unknown(self, path: Path, value: object) -> None:
        """Say why a key is not ours: never to be configured, of the Kotlin coordinator, or a slip."""
        key = dotted(path)
        names = tuple(part for part in path if isinstance(part, str))
        if is_kotlin_only(".".join(uniform(name) for name in names)):
            self.findings.warn(key, KOTLIN_ADVICE)
        elif reason := reason_never(names):
            self.findings.refuse(key, f"this key cannot be: {reason}; from {self.origin}")
        elif not self.never_inside(path, value):
            near = nearest_known(key)
            hint = f"; the nearest known is `{near}`" if near else ""
            self.findings.refuse(key, f"unknown key{hint}; from {self.origin}")

    def never_inside(self, path: Path, value: object) -> bool:
        """Report keys below an unknown one that must never be configured; say whether there were any."""
        self.searched += 1
        if len(path) > NESTING_MAX or self.searched > SEARCHED_MAX:  # aliases can make a small file very large
            return False
        if isinstance(value, list):
            found_in = [self.never_inside((*path, index), entry) for index, entry in enumerate(value)]
            return any(found_in)
        if not isinstance(value, Mapping):
            return False
        found = False
        for raw_key, inner in value.items():
            place = (*path, str(raw_key))
            if reason := reason_never((str(raw_key),)):
                self.findings.refuse(dotted(place), f"this key cannot be: {reason}; from {self.origin}")
                found = True
            else:
                found = self.never_inside(place, inner) or found
        return found
