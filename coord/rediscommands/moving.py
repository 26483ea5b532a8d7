"""What is run only when a store is carried to another one, or another coordinator's state is taken over.

A coordinator runs none of it, and its Redis user need not be allowed to (`coord.rediscommands.access.mover`).
"""

from __future__ import annotations

from collections.abc import Iterator

from coord.rediscommands.commands import REQUESTS_MAX, RedisCommands, all_of
from coord.rediscommands.keys import AggregateKeys
from coord.rediscommands.link import Argument, Reply


class MovingCommands(RedisCommands):
    """One method a command or script, as in `RedisCommands`."""

    # -- all that is stored, to be carried elsewhere

    def keys_like(self, pattern: str) -> Iterator[bytes]:
        """Give the keys under the prefix whose rest is like a glob pattern, in no order, some perhaps twice."""
        return self._template.scan(_literally(self.keys.prefix) + pattern)

    def fields(self, key: str, *names: str) -> Reply:
        """Give fields of a hash, nil for each that is missing."""
        return self._template.call(key, "HMGET", key, *names)

    def last_entry(self, key: str) -> Reply:
        """Give the last entry of a stream, in a list."""
        return self._template.call(key, "XREVRANGE", key, "+", "-", "COUNT", 1)

    def range(self, key: str, *, first: str, limit: int) -> Reply:
        """Give up to `limit` entries of a stream from the id `first` on (`(` before it: after it)."""
        return self._template.call(key, "XRANGE", key, first, "+", "COUNT", limit)

    def import_entries(self, keys: AggregateKeys, *arguments: Argument) -> Reply:
        """See `import_entries.lua`."""
        return self._template.run("import_entries", (keys.events,), *arguments)

    def import_aggregate(self, keys: AggregateKeys, *arguments: Argument) -> Reply:
        """See `import_aggregate.lua`."""
        return self._template.run("import_aggregate", all_of(keys), *arguments)

    def read_answers(self, keys: tuple[str, str]) -> Reply:
        """See `read_answers.lua`."""
        return self._template.run("read_answers", keys)

    def import_answers(self, keys: tuple[str, str], *arguments: Argument) -> Reply:
        """See `import_answers.lua`."""
        return self._template.run("import_answers", keys, *arguments)

    def import_request(self, identifier: str, entry: bytes) -> Reply:
        """Keep an audit entry of no aggregate under the id that it had."""
        requests = self.keys.requests
        return self._template.call(requests, "XADD", requests, "MAXLEN", "~", REQUESTS_MAX, identifier, "event", entry)

    # -- what another coordinator left

    def moment(self, key: str) -> Reply:
        """See `moment.lua`."""
        return self._template.run("moment", (key,), self._source)

    def set_members(self, key: str) -> Reply:
        """Give the members of a set, in no order."""
        return self._template.call(key, "SMEMBERS", key)

    def read_foreign(self, key: str) -> Reply:
        """See `read_foreign.lua`."""
        return self._template.run("read_foreign", (key,))

    def set_aside(self, key: str, beside: str, seen: bytes) -> Reply:
        """See `set_aside.lua`."""
        return self._template.run("set_aside", (key, beside), seen)

    def drop_foreign(self, key: str, seen: bytes) -> Reply:
        """See `drop_foreign.lua`."""
        return self._template.run("drop_foreign", (key,), seen)

    def put_back(self, key: str, beside: str) -> Reply:
        """See `put_back.lua`."""
        return self._template.run("put_back", (key, beside))

    def adopt(self, keys: AggregateKeys, *arguments: Argument) -> Reply:
        """See `adopt.lua`; the identity source is put before the arguments."""
        return self._template.run("adopt", all_of(keys), self._source, *arguments)

    def retire(self, keys: AggregateKeys, log_place: str, *arguments: Argument) -> Reply:
        """See `retire.lua`."""
        return self._template.run("retire", (*all_of(keys), log_place), *arguments)


def _literally(text: str) -> str:
    """Give the glob pattern of a text that means itself."""
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text)
