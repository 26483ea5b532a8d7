"""The documented users, read from the README as a shell would read it, and a server that has them."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.settings import RedisSettings
from ops.docs import ACL_BEGIN, ACL_END, README
from tests.store.redis_server import RedisServer

PASSWORD = "a-password-of-the-tests"


def documented() -> dict[str, list[str]]:
    """Give what follows `ACL SETUSER NAME` in each documented line, by name."""
    block = README.read_text().split(ACL_BEGIN, 1)[1].split(ACL_END, 1)[0]
    (script,) = re.findall(r"```sh\n(.*?)```", block, flags=re.DOTALL)
    users = {}
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[:3] == ["redis-cli", "ACL", "SETUSER"], words
            users[words[3]] = [word.replace("PASSWORD", PASSWORD) for word in words[4:]]
    return users


class Owned(RedisServer):
    """A server with the documented users beside the default one, who may do everything and is the hand of fate."""

    def __init__(self, binary: Path) -> None:
        super().__init__(binary=binary)
        self.make_users()

    def make_users(self) -> None:
        for name, rules in documented().items():
            self.call("ACL", "SETUSER", name, *rules)

    def settings_of(self, user: str) -> RedisSettings:
        return replace(self.settings(), username=user, password=PASSWORD)

    def commands_of(self, user: str = "coordinator") -> RedisCommands:
        """Give the coordinator's commands as a user, under the documented key prefix."""
        return RedisCommands(self.settings_of(user))

    def url_of(self, user: str) -> str:
        return f"redis://{user}:{PASSWORD}@127.0.0.1:{self.port}/0"
