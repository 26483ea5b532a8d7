"""What an ACL refused, by name: Redis 7.0 names no command of a script, and no release the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from coord.rediscommands.access import needed_by, probe
from coord.rediscommands.errors import RedisFault, Refused
from coord.rediscommands.link import Argument, Reply, pack
from coord.rediscommands.scripts import Script, script

_DENIED: Final = re.compile(r"^NOPERM|ACL failure in script|user executing the script can't")
_KEYS_MAX: Final = 4
"""How many of a script's keys are looked at: one of each kind."""


def is_denied(refusal: Refused) -> bool:
    """Tell whether it was the ACL that refused."""
    return _DENIED.search(str(refusal)) is not None


def explained_command(refusal: Refused, key: str, command: Sequence[Argument]) -> Refused:
    """Name key and command of a refusal by the ACL; any other is given as it is."""
    if not is_denied(refusal):
        return refusal
    return _named(refusal, f"{command[0]!s} on {key}")


def explained_script(refusal: Refused, wanted: Script, keys: Sequence[str], ask: Callable[[bytes], Reply]) -> Refused:
    """Name script and key of a refusal by the ACL, and each command that is not allowed; any other is given as it is.

    `ask` sends packed bytes to where the script went, and gives the reply or raises RedisFault.
    """
    if not is_denied(refusal):
        return refusal
    looked_at = [(command, key) for command in needed_by((wanted.name,)) for key in keys[:_KEYS_MAX]]
    words = [word for command, key in looked_at for word in probe(command, key)]
    try:
        answers = ask(pack("EVAL_RO", script("missing_rights").text, 0, *words))
    except RedisFault:
        answers = []
    missing: dict[str, str] = {}
    for (command, key), answer in zip(looked_at, answers or (), strict=False):
        if answer != 1:
            missing.setdefault(command, key)
    told = "".join(f"; not allowed: '{command}' on {key}" for command, key in missing.items())
    return _named(refusal, f"script {wanted.name} on {keys[0]}{told}")


def _named(refusal: Refused, what: str) -> Refused:
    text = str(refusal)
    return Refused(f"{text if refusal.code == 'NOPERM' else f'NOPERM {text}'} [{what}]")
