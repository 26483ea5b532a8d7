"""The store on Redis: each step one script, so that it happens whole or not at all.

A commit whose answer is lost is sent again, the same bytes, once, on a fresh connection; the script recognises it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from coord.events.envelope import Entry
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.errors import RedisFault, Unreachable
from coord.rediscommands.link import Reply
from coord.rediscommands.survey import Concern, Wanted
from coord.store.base import (
    Commit,
    Committed,
    Conflict,
    Due,
    Head,
    Loaded,
    OutcomeUnknown,
    Soft,
    Standing,
    StoreError,
    StoreUnavailable,
    Tail,
    Touch,
    Touched,
    Turn,
)
from coord.store.reading import TAIL_FREE_BYTES, attempted, check_append, check_commit
from coord.store.redis.answers import RedisAnswers
from coord.store.redis.faults import told
from coord.store.redis.mutexes import RedisMutexes
from coord.store.redis.replicas import Confirmation, ReplicaWait
from coord.store.redis.replies import (
    answers_of,
    commit_arguments,
    due_of,
    entry_id,
    entry_of,
    loaded_of,
    pairs,
    seen,
    sound,
    standing_of,
    touch_arguments,
    touched_of,
    written,
)
from coord.store.redis.windows import RedisWindows

PING_EVERY_S: Final = 1.0
FIRST_TRY_SHARE: Final = 0.5
"""How much of a call's time a write may take before it is sent again in what is left."""


class RedisStore:
    """`coord.store.base.Store` on Redis. Closing it closes the connections of its commands."""

    def __init__(self, commands: RedisCommands, *, wait: ReplicaWait | None = None) -> None:
        self._commands = commands
        self._wait = wait
        self._aggregate = commands.keys.aggregate
        self._clock = _Clock(commands)
        self.mutexes = RedisMutexes(commands)
        self.windows = RedisWindows(commands)
        self.answers = RedisAnswers(commands)

    # -- an aggregate

    def load(self, key: AggregateKey) -> Loaded:
        """Read aggregate, head, clock and identity in one script."""
        with told(key):
            reply = self._commands.load(self._aggregate(key))
        loaded = loaded_of(key, sound(key, reply))
        assert isinstance(loaded, Loaded), "a tail, though none was asked for"
        return loaded

    def catch_up(self, key: AggregateKey, *, seen: Head, limit: int) -> Tail | Loaded:
        """Read the log's tail together with the head that it leads to, or the whole, in one script."""
        with told(key):
            reply = self._commands.load(self._aggregate(key), seen=(entry_id(seen.last), seen.chain, limit, TAIL_FREE_BYTES))
        return loaded_of(key, sound(key, reply))

    def tail(self, key: AggregateKey, *, after: tuple[int, int], limit: int) -> Sequence[Entry]:
        """Read log entries after an id, oldest first."""
        first = "-" if after == (0, 0) else f"({entry_id(after)}"
        with told(key):
            items = self._commands.entries(self._aggregate(key), first=first, limit=limit)
        return [entry_of(key, item)[0] for item in items]

    def latest(self, key: AggregateKey, *, before: tuple[int, int] | None, limit: int) -> Sequence[Entry]:
        """Read log entries before an id, newest first."""
        last = "+" if before is None else f"({entry_id(before)}"
        with told(key):
            items = self._commands.latest(self._aggregate(key).events, last=last, limit=limit)
        return [entry_of(key, item)[0] for item in items]

    def commit(self, commit: Commit) -> Committed | Conflict:
        """Write, or not, in one script; then wait for replicas, where asked."""
        check_commit(commit)
        keys, arguments = self._aggregate(commit.key), commit_arguments(commit)
        confirmation = Confirmation(commit.key, self._wait) if commit.waits and self._wait is not None else None
        then = confirmation.ask if confirmation is not None else None
        reply = _twice(
            commit.key,
            lambda deadline: self._commands.commit(keys, *arguments, deadline=deadline, then=then),
            self._commands,
        )
        if reply[0] == b"conflict":
            _, what, revision, identity, now = reply
            return Conflict(what=what.decode(), revision=int(revision), identity=identity.decode(), now=now)
        replicas = confirmation.result() if confirmation is not None else None
        return Committed(head=commit.head_after, now=reply[1], already=reply[0] == b"already", replicas=replicas)

    def append(self, key: AggregateKey, *, expected: Head, entries: tuple[Entry, ...]) -> Head | None:
        """Write entries of the same revision in one script."""
        check_append(expected, entries)
        keys, arguments = self._aggregate(key), (*seen(expected), *written(entries))
        reply = _twice(key, lambda deadline: self._commands.append(keys, *arguments, deadline=deadline), self._commands)
        if reply[0] == b"moved":
            return None
        last = entries[-1]
        return Head(
            exists=expected.exists,
            revision=expected.revision,
            commit_id=expected.commit_id,
            last=(last.revision, last.index),
            chain=last.chain,
        )

    # -- soft state

    def touch(self, touch: Touch) -> Touched:
        """Check, renew and report in one script."""
        with told(touch.key):
            reply = self._commands.touch(self._aggregate(touch.key), *touch_arguments(touch))
        return touched_of(touch, reply)

    def touch_many(self, touches: Sequence[Touch]) -> list[Touched | StoreError]:
        """Touch several groups in one pipeline a server."""
        with told():
            replies = self._commands.touch_many([(self._aggregate(touch.key), touch_arguments(touch)) for touch in touches])
        return [attempted(touched_of, touch, reply) for touch, reply in zip(touches, replies, strict=True)]

    def lease(self, key: GroupKey, member_id: str) -> tuple[int | None, int]:
        """Give a member's deadline and the clock."""
        with told(key):
            reply = self._commands.lease(self._aggregate(key), member_id)
        _, deadline, now = sound(key, reply)
        return deadline, now

    def soft(self, key: GroupKey) -> Soft:
        """Read all leases and reports."""
        with told(key):
            reply = self._commands.soft(self._aggregate(key))
        _, leases, reports, now = sound(key, reply)
        return Soft(
            leases={member.decode(): deadline for member, deadline in pairs(leases)},
            reports={member.decode(): report for member, report in pairs(reports)},
            now=now,
        )

    def due_many(self, keys: Sequence[GroupKey], *, lease_ttl_ms: int, grace: bool) -> list[Due | StoreError]:
        """Stamp looks and give lapsed leases, of hundreds of groups a script, or of scripts a round trip in a cluster."""
        return answers_of(keys, self._commands.due(keys, ttl_ms=lease_ttl_ms, grace=grace), due_of)

    def standings(self, keys: Sequence[AggregateKey]) -> list[Standing | StoreError]:
        """Tell where each aggregate stands, in as few scripts as `due_many`."""
        return answers_of(keys, self._commands.standings(keys), standing_of)

    def grant_missing_leases(self, key: GroupKey, members: Sequence[str], *, ttl_ms: int) -> None:
        """Give a whole lease to those without an entry."""
        with told(key):
            reply = self._commands.grant_missing(self._aggregate(key), members, ttl_ms=ttl_ms)
        sound(key, reply)

    # -- what belongs to no aggregate

    def streams(self) -> Sequence[str]:
        """Give the index, sorted."""
        with told():
            return sorted(prefix.decode() for prefix in self._commands.index_members())

    def index_add(self, key: StreamKey) -> None:
        """Put a stream into the index."""
        with told():
            self._commands.index_add(key.stream_prefix)

    def index_remove(self, key: StreamKey) -> None:
        """Take a stream out of the index."""
        with told():
            self._commands.index_remove(key.stream_prefix)

    def take_turn(self, instance: str, *, takeover_ms: int) -> Turn:
        """Ask to tick."""
        with told():
            mine, ticked_at, now = self._commands.take_turn(instance, takeover_ms=takeover_ms)
        return Turn(mine=mine == 1, ticked_at=ticked_at, now=now)

    def announce(self, instance: str, *, reads: int, within_ms: int) -> int:
        """Note what an instance reads, and give the lowest level of all that were heard of lately."""
        with told():
            level: int = self._commands.announce(instance, reads=reads, within_ms=within_ms)
        return level

    def last_tick(self) -> tuple[int, int]:
        """Give when anybody ticked last, and the clock."""
        with told():
            ticked_at, now = self._commands.last_tick()
        return ticked_at, now

    def append_request(self, entry: bytes) -> None:
        """Keep an audit entry in a bounded stream."""
        with told():
            self._commands.append_request(entry)

    def requests(self, *, before: str | None, limit: int) -> Sequence[tuple[str, bytes]]:
        """Read the kept entries, newest first; an entry's place is its id in the stream."""
        last = "+" if before is None else f"({before}"
        with told():
            items = self._commands.latest(self._commands.keys.requests, last=last, limit=limit)
        return [(identifier.decode(), dict(pairs(fields))[b"event"]) for identifier, fields in items]

    def identity(self) -> str:
        """Give the identity of the node that holds the index."""
        with told():
            identity: bytes = self._commands.identity()
        return identity.decode()

    def ping(self) -> int:
        """Give the store's clock; asked of Redis at most once a second, good or bad."""
        return self._clock.now()

    def concerns(self, *, lease_ttl_ms: int) -> Sequence[Concern]:
        """Tell what is unsafe or unknown about the Redis in use (eviction, no replicas needed for a write, ...)."""
        wanted = Wanted(lease_ttl_ms=lease_ttl_ms, wait_replicas=self._wait.replicas if self._wait is not None else 0)
        with told():
            return [concern for concern in self._commands.survey(wanted) if concern.level != "ok"]

    # -- connections

    def after_fork(self) -> None:
        """Drop every connection inherited from the parent process."""
        self._clock = _Clock(self._commands)
        self._commands.after_fork()

    def close(self) -> None:
        """Close all connections."""
        self._commands.close()


class _Clock:
    """Redis's clock as asked within the last second, and whether it could be asked: health checks may come in crowds."""

    def __init__(self, commands: RedisCommands) -> None:
        self._commands = commands
        self._asking = Lock()
        self._asked_at_s = -PING_EVERY_S
        self._answer: int | str = "never asked"

    def now(self) -> int:
        """Give the clock, ms; StoreUnavailable as when it was last asked."""
        if not self._asking.acquire(timeout=max(self._commands.deadline() - time.monotonic(), 0)):
            message = "another look at Redis has not ended in time"
            raise StoreUnavailable(message)
        try:
            elapsed_s = time.monotonic() - self._asked_at_s
            if elapsed_s >= PING_EVERY_S:
                self._answer = self._ask()
                self._asked_at_s, elapsed_s = time.monotonic(), 0.0
        finally:
            self._asking.release()
        if isinstance(self._answer, str):
            raise StoreUnavailable(self._answer)
        return self._answer + int(elapsed_s * 1000)

    def _ask(self) -> int | str:
        try:
            return self._commands.time_ms()
        except RedisFault as error:
            return str(error)


def _twice(key: AggregateKey, send: Callable[[float], Reply], commands: RedisCommands) -> Reply:
    """Send a write whose repeat is recognised: again, once, when it went out and no answer came back."""
    deadline = commands.deadline()
    try:
        with told(key):
            return sound(key, send(commands.deadline(share=FIRST_TRY_SHARE)))
    except StoreUnavailable as error:
        lost = error.__cause__
        if not (isinstance(lost, Unreachable) and lost.sent):
            raise
    try:
        with told(key):
            return sound(key, send(deadline))
    except StoreUnavailable as error:
        message = f"a write was sent twice and nothing says whether it took place: {error}"
        raise OutcomeUnknown(message) from error
