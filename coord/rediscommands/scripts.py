"""The Lua scripts: one file a script in `lua/`, its pieces shared with others in `lua/shared/`.

A line `-- include: NAME` stands for `shared/NAME.lua`. The header of each file gives its job, KEYS, ARGV and Returns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

_INCLUDE: Final = re.compile(r"^-- include: (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the SHA-1 (hex) that EVALSHA names it by."""

    name: str
    text: str
    sha: str

    @property
    def reads_only(self) -> bool:
        """Whether it declares that it writes nothing."""
        return self.text.startswith("#!lua flags=no-writes")


def script_names() -> tuple[str, ...]:
    """Give the names of all scripts."""
    folder = files("coord.rediscommands") / "lua"
    return tuple(sorted(file.name.removesuffix(".lua") for file in folder.iterdir() if file.name.endswith(".lua")))


def _read(name: str) -> str:
    return (files("coord.rediscommands") / "lua" / f"{name}.lua").read_text(encoding="utf-8")


@cache
def script(name: str) -> Script:
    """Give a script by its file's name."""
    text = _INCLUDE.sub(lambda found: _read(f"shared/{found[1]}").rstrip(), _read(name))
    # SHA-1 is the name that Redis gives a script, no protection of anything.
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
