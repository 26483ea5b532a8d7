"""What the ticker asks: who is due, whose turn it is, what live instances read. Each runs inside a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from coord.names import AggregateKey, GroupKey
from coord.store.base import Due, Standing, StoreError, Turn
from coord.store.sql.rows import AnyRow, key_of, stored_identity
from coord.store.sql.statements import Statements
from coord.store.sql.tables import ONE


def look(
    connection: Connection, statements: Statements, keys: Sequence[GroupKey], *, lease_ttl_ms: int, grace: bool
) -> Mapping[GroupKey, Due]:
    """Stamp the look at each of these groups and give its lapsed leases; a group that does not exist is not stamped."""
    wanted = {"keys": [(key.stream_prefix, key.consumer_group) for key in keys]}
    existing = {GroupKey(row[0], row[1]): row for row in connection.execute(statements.hold_many, wanted)}
    before = {GroupKey(row[0], row[1]): row for row in connection.execute(statements.looked_many, wanted)}
    moment = connection.execute(statements.moment).one()
    now, identity = moment.now, stored_identity(moment.identity)
    stamps = {}
    for key in existing:
        looked_at, grace_until = (before[key].looked_at, before[key].grace_until) if key in before else (0, 0)
        # The distance, not the difference: a clock that went back must start a grace too.
        if grace or looked_at == 0 or abs(now - looked_at) > lease_ttl_ms / 2:
            grace_until = max(grace_until, now + lease_ttl_ms)
        stamps[key] = (looked_at, 0 if grace_until <= now else grace_until)
    if stamps:
        connection.execute(statements.look, [_stamp(key, now, grace_until) for key, (_, grace_until) in sorted(stamps.items())])
    deadlines: dict[GroupKey, dict[str, int]] = {}
    for row in connection.execute(statements.deadlines_of_many, wanted) if stamps else ():
        deadlines.setdefault(GroupKey(row[0], row[1]), {})[row.member_id] = row.deadline_ms
    return {key: _due(existing.get(key), stamps.get(key), deadlines.get(key, {}), identity=identity, now=now) for key in keys}


def standings(connection: Connection, statements: Statements, keys: Sequence[AggregateKey]) -> list[Standing | StoreError]:
    """Tell where each of these aggregates stands."""
    of = [key_of(key) for key in keys]
    found = connection.execute(statements.stand_many, {"keys": [(each["stream"], each["group"]) for each in of]})
    rows = {(row[0], row[1]): row for row in found}
    moment = connection.execute(statements.moment).one()
    identity = stored_identity(moment.identity)
    return [_standing(rows.get((each["stream"], each["group"])), identity=identity, now=moment.now) for each in of]


def _standing(row: AnyRow | None, *, identity: str, now: int) -> Standing:
    revision, commit_id = (row.store_revision, row.commit_id) if row is not None else (0, "")
    return Standing(revision=revision, commit_id=commit_id, identity=identity, now=now)


def _stamp(key: GroupKey, now: int, grace_until: int) -> dict[str, object]:
    return {
        "stream_prefix": key.stream_prefix,
        "consumer_group": key.consumer_group,
        "looked_at": now,
        "grace_until": grace_until,
    }


def _due(row: AnyRow | None, stamp: tuple[int, int] | None, deadlines: Mapping[str, int], *, identity: str, now: int) -> Due:
    """Give what the clock says; nothing of a group that does not exist (no stamp)."""
    looked_at, grace_until = stamp or (0, 0)
    found = deadlines if stamp is not None else {}
    stands = _standing(row, identity=identity, now=now)
    return Due(
        revision=stands.revision,
        commit_id=stands.commit_id,
        earliest=min(found.values(), default=0),
        lapsed={} if grace_until else {member: deadline for member, deadline in found.items() if deadline < now},
        grace_until=grace_until,
        entries=len(found),
        looked_at=looked_at,
        identity=identity,
        now=now,
    )


def take_turn(connection: Connection, statements: Statements, instance: str, *, takeover_ms: int) -> Turn:
    """Give the turn to who ticked last, or to anybody once that is long ago."""
    row = connection.execute(statements.ticker).first()
    ticker, ticked_at = (row.ticker, row.ticked_at) if row is not None else ("", 0)
    now = connection.execute(statements.moment).one().now
    is_mine = ticker == instance or ticked_at == 0 or abs(now - ticked_at) >= takeover_ms
    if is_mine:
        connection.execute(statements.turn, [{"id": ONE, "ticker": instance, "ticked_at": now}])
    return Turn(mine=is_mine, ticked_at=ticked_at, now=now)


def announce(connection: Connection, statements: Statements, instance: str, *, reads: int, within_ms: int) -> int:
    """Note what an instance reads, drop old notes, and give the lowest level of those that are left."""
    now = connection.execute(statements.moment).one().now
    connection.execute(statements.note, [{"instance": instance, "reads_level": reads, "seen_at": now}])
    lowest = reads
    for note in connection.execute(statements.notes).all():
        if note.instance == instance:
            continue
        if abs(now - note.seen_at) <= within_ms:
            lowest = min(lowest, note.reads_level)
        else:
            connection.execute(statements.drop_note, {"gone": note.instance})
    return lowest
