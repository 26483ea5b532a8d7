"""The configuration as people see it: the effective values with their origins, and the table of all keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coord.config.keys import TREE, Branch, Leaf, Listing, leaves, template_text
from coord.config.problems import Path, dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coord.config.schema import Configuration


@dataclass(frozen=True, slots=True)
class Shown:
    """One key in force: its path, its value (secrets masked; a number, a text, a truth value or a list), its origin."""

    path: Path
    value: object
    origin: str

    @property
    def key(self) -> str:
        """The path as text."""
        return dotted(self.path)


def shown_value(leaf: Leaf, value: object) -> object:
    """Return a value in the form that people write, secrets masked."""
    if isinstance(value, tuple):
        return [leaf.rule.show(entry) for entry in value]
    return leaf.rule.show(value)


def effective(configuration: Configuration) -> list[Shown]:
    """Return every key in force in the order of the documents."""
    return list(_shown(TREE, configuration, (), configuration))


def _shown(branch: Branch, section: object, path: Path, root: Configuration) -> Iterator[Shown]:
    for child in branch.children.values():
        place = (*path, child.name)
        value = getattr(section, child.attribute)
        if isinstance(child.node, Branch):
            yield from _shown(child.node, value, place, root)
        elif isinstance(child.node, Listing):
            for index, item in enumerate(value):
                yield from _shown(child.node.item, item, (*place, index), root)
        else:
            yield Shown(place, shown_value(child.node, value), root.origins.get(dotted(place), "default"))


def markdown_table() -> str:
    """Return all keys as a Markdown table (key, default, meaning) that ends with a line feed."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    rows += [f"| `{template_text(path)}` | {_default(leaf)} | {_cell(leaf.meaning)}{_allowed(leaf)} |" for path, leaf in leaves()]
    return "\n".join(rows) + "\n"


def _default(leaf: Leaf) -> str:
    if leaf.rule.default_text:
        text = leaf.rule.default_text
        return f"`{text}`" if text.startswith("$") else _cell(text)
    value = shown_value(leaf, leaf.default)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        value = ", ".join(str(entry) for entry in value)
    return f"`{_cell(str(value))}`" if str(value) else "—"


def _allowed(leaf: Leaf) -> str:
    allowed = leaf.rule.allowed
    if leaf.rule.is_secret or allowed in {"true or false", "text on one line", "host:port"} or allowed.startswith("one of"):
        return ""
    return f" ({_cell(allowed)})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
