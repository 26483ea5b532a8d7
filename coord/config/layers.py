"""Values by key, before they are judged; stronger layers replace weaker ones key by key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coord.config.keys import Leaf, leaf_at
from coord.config.problems import Findings, Path, dotted

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Given:
    """A raw value and where it was found."""

    value: object
    origin: str


@dataclass(slots=True)
class Layer:
    """What one source says. `whole_lists`: lists that it gives from the first entry to the last, with the origin."""

    values: dict[Path, Given] = field(default_factory=dict)
    whole_lists: dict[Path, str] = field(default_factory=dict)


def is_blank(value: object) -> bool:
    """Say whether a raw value is missing or only white space."""
    return value is None or (isinstance(value, str) and not value.strip())


def counts_as_unset(path: Path, leaf: Leaf, value: object) -> bool:
    """Say whether a raw value leaves the key alone: null always, a blank unless text outside `redis` is asked for."""
    return value is None or (is_blank(value) and (path[0] == "redis" or not leaf.rule.is_text))


def put(layer: Layer, path: Path, value: object, origin: str, findings: Findings) -> None:
    """Take one value into a layer; a text for a whole list is split at its commas."""
    leaf = leaf_at(dotted(path))
    if path in layer.values or path in layer.whole_lists:
        findings.refuse(dotted(path), f"it is given twice, the second time by {origin}; keep one")
        return
    if leaf.rule.is_list and not isinstance(path[-1], int):
        put_list(layer, path, value, origin, findings)
    elif not counts_as_unset(path, leaf, value):
        layer.values[path] = Given(value, origin)


def put_list(layer: Layer, path: Path, value: object, origin: str, findings: Findings) -> None:
    """Take a whole list: a YAML list, or a text with commas. Blank entries are left out."""
    if value is None or (is_blank(value) and path[0] == "redis"):
        return
    if isinstance(value, str):
        entries: list[object] = list(value.split(","))
    elif isinstance(value, list | tuple):
        entries = list(value)
    else:
        findings.refuse(dotted(path), f"a list is expected, or a text with commas; from {origin}")
        return
    layer.whole_lists[path] = origin
    filled = [
        entry.strip() if isinstance(value, str) and isinstance(entry, str) else entry for entry in entries if not is_blank(entry)
    ]
    for index, entry in enumerate(filled):
        layer.values[(*path, index)] = Given(entry, origin)


def merge(layers: Iterable[Layer]) -> Layer:
    """Lay the layers over each other, weakest first. A whole list replaces the weaker one; `NAME_0` one entry of it."""
    merged = Layer()
    for layer in layers:
        for whole in layer.whole_lists:
            for path in [path for path in merged.values if path[: len(whole)] == whole]:
                del merged.values[path]
        merged.whole_lists.update(layer.whole_lists)
        merged.values.update(layer.values)
    return merged
