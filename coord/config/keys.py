"""The keys as a tree, read off the structs: which names exist, in which spellings, with which rule."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, get_args, get_origin

import msgspec
from msgspec import Meta

from coord.config.problems import dotted
from coord.config.rules import Rule, rule_of
from coord.config.schema import Configuration, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

SUGGESTION_CUTOFF = 0.6
ITEM = "[]"
"""Stands in a template for the index of a list entry."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A key with a value (or, when `rule.is_list`, a list of values)."""

    meaning: str
    rule: Rule
    default: object


@dataclass(frozen=True, slots=True)
class Child:
    """A key inside a section: as written in YAML, as named in code."""

    name: str
    attribute: str
    node: Leaf | Branch | Listing


@dataclass(frozen=True, slots=True)
class Branch:
    """A section; children by their uniform spelling."""

    type: type[Section]
    children: dict[str, Child]


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of sections, such as `api.users`."""

    item: Branch


def uniform(name: str) -> str:
    """Return the one form of `heartbeat-interval`, `heartbeatInterval`, `heartbeat_interval` and `HEARTBEAT_INTERVAL`."""
    return re.sub(r"[-_]", "", name).lower()


def _branch(section: type[Section]) -> Branch:
    children: dict[str, Child] = {}
    for info in msgspec.structs.fields(section):
        node: Leaf | Branch | Listing
        arguments = get_args(info.type)
        if get_origin(info.type) is Annotated and isinstance(arguments[1], Meta):
            default = info.default_factory() if info.default is msgspec.NODEFAULT else info.default
            node = Leaf(arguments[1].description or "", rule_of(arguments[1]), default)
        elif isinstance(info.type, type) and issubclass(info.type, Section):
            node = _branch(info.type)
        elif arguments and isinstance(arguments[0], type) and issubclass(arguments[0], Section):
            node = Listing(_branch(arguments[0]))
        else:
            continue  # `origins` and `warnings`: what the load adds
        children[uniform(info.encode_name)] = Child(info.encode_name, info.name, node)
    return Branch(section, children)


TREE = _branch(Configuration)


def leaves(branch: Branch = TREE, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Yield each key's template path (`("api", "users", "[]", "username")`) and leaf, in the order of the structs."""
    for child in branch.children.values():
        path = (*above, child.name)
        if isinstance(child.node, Leaf):
            yield path, child.node
        elif isinstance(child.node, Listing):
            yield from leaves(child.node.item, (*path, ITEM))
        else:
            yield from leaves(child.node, path)


def template_text(path: tuple[str, ...]) -> str:
    """Write a template path as the documents do: `api.users[].username`."""
    return dotted(path).replace(f".{ITEM}", ITEM)


def _known_names() -> list[str]:
    names: dict[str, None] = {}
    for path, leaf in leaves():
        for end in range(1, len(path) + 1):
            if path[end - 1] != ITEM:
                names[template_text(path[:end])] = None
        if leaf.rule.is_list:
            names[template_text(path)] = None
    return list(names)


KNOWN_NAMES = _known_names()
LEAF_BY_TEMPLATE = {template_text(path): leaf for path, leaf in leaves()}


def leaf_at(key: str) -> Leaf:
    """Return the leaf of a key with or without indices; KeyError if there is none."""
    template = re.sub(r"\[\d+\]", ITEM, key)
    if template not in LEAF_BY_TEMPLATE and template.endswith(ITEM):
        template = template[: -len(ITEM)]
    return LEAF_BY_TEMPLATE[template]


def nearest_known(key: str) -> str:
    """Return the known key that an unknown one most likely means, or an empty text."""
    template = re.sub(r"\[\d+\]", ITEM, key)
    last = uniform(template.rpartition(".")[2])
    same_name = [name for name in KNOWN_NAMES if uniform(name.rpartition(".")[2]) == last]
    by_form = {uniform(name): name for name in KNOWN_NAMES}
    for candidates in (
        same_name,
        [by_form[form] for form in difflib.get_close_matches(uniform(template), list(by_form), n=1, cutoff=SUGGESTION_CUTOFF)],
    ):
        if candidates:
            return max(candidates, key=lambda name: difflib.SequenceMatcher(None, name, template).ratio())
    return ""
