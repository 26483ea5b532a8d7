"""What is stored in a Redis, read and written as it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from coord.names import AggregateKey
from coord.rediscommands.link import Argument, Reply
from coord.rediscommands.moving import MovingCommands
from coord.store.base import LAYOUT_VERSION, SCHEMA_VERSION, CorruptAggregate, Head
from coord.store.redis.faults import told
from coord.store.redis.replies import entry_id, entry_of, pairs, place_of
from coord.store.transfer import Answered, Guard, Place, Record, Request, in_order

REQUESTS_AT_ONCE: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_OF_AGGREGATES: Final = frozenset({"metadata", "events"})


class RedisTransfer:
    """`coord.store.transfer.Transfer` on Redis: what is written is written by scripts, whole or not at all."""

    def __init__(self, commands: MovingCommands) -> None:
        self._commands = commands
        self._keys = commands.keys

    def aggregates(self) -> Sequence[AggregateKey]:
        """Go through all keys, on every node."""
        found: set[AggregateKey] = set()
        with told():
            for key in self._commands.keys_like(":{*}:*"):
                named = self._keys.parse(key.decode(errors="replace"))
                if named is not None and named[1] in _OF_AGGREGATES:
                    found.add(named[0])
        return in_order(found)

    def records(self, key: AggregateKey, *, after: Place, limit: int) -> Sequence[Record]:
        """Read log entries after a place."""
        items = self._read(key, lambda name: self._commands.range(name, first=f"({entry_id(after)}", limit=limit))
        return [Record(*entry_of(key, item)) for item in items]

    def end(self, key: AggregateKey) -> Record | None:
        """Give the log's last entry."""
        items = self._read(key, self._commands.last_entry)
        return Record(*entry_of(key, items[0])) if items else None

    def guard(self, key: AggregateKey) -> Guard | None:
        """Give what stands beside the aggregate; one of another version is for `Store.load` to judge."""
        name = self._keys.metadata(key)
        with told(key):
            revision, commit_id, head, identity, updated_at = self._commands.fields(
                name, "revision", "commitId", "head", "identity", "updatedAt"
            )
        if revision is None:
            return None
        try:
            return Guard(
                revision=int(revision),
                commit_id=commit_id.decode(),
                last=place_of(head),
                identity=identity.decode(),
                updated_at=(datetime.fromisoformat(updated_at.decode()) - _EPOCH) // _MS,
            )
        except (AttributeError, ValueError, TypeError) as error:
            raise CorruptAggregate(key, "revision, commitId, head, identity or updatedAt is unreadable") from error

    def put_records(self, key: AggregateKey, records: Sequence[Record], *, after: Record | None) -> bool:
        """Write entries, all or none."""
        end = (after.entry.entry_id, after.entry.chain) if after else ("0-0", "")
        written = (
            part
            for record in records
            for part in (record.entry.entry_id, record.entry.body, record.entry.chain, record.commit_id)
        )
        with told(key):
            return _done(key, self._commands.import_entries(self._keys.aggregate(key), *end, *written))

    def put_aggregate(self, key: AggregateKey, head: Head, aggregate: bytes | None, guard: Guard) -> bool:
        """Put the fold and its guard, or take them away."""
        fields: dict[str, Argument] = {
            "aggregate": aggregate or b"",
            "revision": guard.revision,
            "schemaVersion": SCHEMA_VERSION,
            "layoutVersion": LAYOUT_VERSION,
            "updatedAt": (_EPOCH + guard.updated_at * _MS).strftime("%Y-%m-%dT%H:%M:%S.") + f"{guard.updated_at % 1000:03d}Z",
            "commitId": guard.commit_id,
            "head": entry_id(head.last),
            "chain": head.chain,
            "identity": guard.identity,
        }
        flat: list[Argument] = [part for field in fields.items() for part in field]
        arguments = (entry_id(head.last), head.chain, int(aggregate is not None), *flat)
        with told(key):
            return _done(key, self._commands.import_aggregate(self._keys.aggregate(key), *arguments))

    def answers(self, key: AggregateKey) -> Sequence[Answered]:
        """Read what is remembered, the oldest first."""
        with told(key):
            left_ms, bodies, order = self._commands.read_answers(self._keys.answers(key))
        kept = dict(pairs(bodies))
        return [
            Answered(digest=bytes.fromhex(name.decode()), body=kept[name], at=int(at), left_ms=left_ms)
            for name, at in pairs(order)
            if name in kept and left_ms > 0
        ]

    def put_answers(self, key: AggregateKey, answers: Sequence[Answered]) -> None:
        """Remember answers for what is left of their time."""
        left_ms = max((each.left_ms for each in answers), default=0)
        flat = (part for each in answers for part in (each.digest.hex(), each.body, each.at))
        with told(key):
            self._commands.import_answers(self._keys.answers(key), *((left_ms, *flat) if answers else ()))

    def requests(self) -> Sequence[Request]:
        """Read all that are kept, a page at a time."""
        found: list[Request] = []
        first = "-"
        while True:
            with told():
                page = self._commands.range(self._keys.requests, first=first, limit=REQUESTS_AT_ONCE)
            found += [Request(*place_of(identifier), dict(pairs(flat))[b"event"]) for identifier, flat in page]
            if len(page) < REQUESTS_AT_ONCE:
                return found
            first = f"({page[-1][0].decode()}"

    def put_requests(self, requests: Sequence[Request]) -> None:
        """Add each under the id that says when it was written."""
        with told():
            for request in requests:
                self._commands.import_request(f"{request.at}-{request.n}", request.entry)

    def close(self) -> None:
        """Close all connections."""
        self._commands.close()

    def _read(self, key: AggregateKey, ask: Callable[[str], Reply]) -> Sequence[Any]:
        with told(key):
            items: Sequence[Any] = ask(self._keys.aggregate(key).events)
        return items


def _done(key: AggregateKey, reply: Reply) -> bool:
    if reply[0] == b"corrupt":
        raise CorruptAggregate(key, reply[1].decode(errors="replace"))
    return bool(reply[0] == b"written")
