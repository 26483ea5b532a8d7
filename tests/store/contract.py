"""What every store promises. Each concrete store runs all of it: see `test_contract.py`.

`World` is a store together with what only tests may do to it: let time pass, and break what is stored.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Protocol

import pytest
from msgspec import structs

from coord.events.chain import GENESIS
from coord.events.codec import decode
from coord.names import GroupKey, StreamKey
from coord.store.base import (
    EMPTY_HEAD,
    Committed,
    Conflict,
    CorruptAggregate,
    Due,
    Head,
    LeaseChanges,
    LeaseGuards,
    Loaded,
    Standing,
    Store,
    Tail,
    Touch,
    Touched,
)
from tests.store.author import KEY, appended, commit_on, committed, deleted, deletion, due, fact, request_entry

TTL_MS = 60
LONG_MS = 60_000


class World(Protocol):
    """A store, and the hands of fate."""

    @property
    def store(self) -> Store:
        """The store under test."""

    def wait(self, ms: int) -> None:
        """Let this much of the store's time pass, or a little more."""

    def lose_log(self, key: GroupKey) -> None:
        """Delete the log."""

    def lose_last_entry(self, key: GroupKey) -> None:
        """Delete the log's last entry."""

    def lose_metadata(self, key: GroupKey) -> None:
        """Delete the aggregate."""

    def set_versions(self, key: GroupKey, schema: int, layout: int) -> None:
        """Pretend that another release wrote the aggregate."""

    def set_revision(self, key: GroupKey, revision: int) -> None:
        """Overwrite the revision beside the aggregate."""


def touch(store: Store, head: Head, **changes: object) -> Touched:
    """Touch as the member that saw this head."""
    plain = Touch(
        key=KEY,
        revision=head.revision,
        commit_id=head.commit_id,
        identity=store.load(KEY).identity,
        renew=("m",),
        ttl_ms=TTL_MS,
    )
    return store.touch(replace(plain, **changes))  # type: ignore[arg-type]  # options as they come


LARGE = b'{"name":"' + b"x" * 20_000 + b'"}'
"""An aggregate that is larger than a few log entries."""


HARD_TEXTS = ("名", "\U0001f600", "e\u0301", "\u00e9", "\ufffd", "\U0010ffff", "'; --", "%s{}", "\u202e", "NaN")
"""Beyond the basic plane, composed and not, meaningful to SQL or to a terminal."""


class StoreContract:
    """The promises."""

    # -- load, tail, commit

    def test_what_was_never_written_is_an_empty_head(self, world: World) -> None:
        read = world.store.load(KEY)
        assert (read.head, read.aggregate, read.tombstone) == (EMPTY_HEAD, None, None)
        assert read.identity
        assert world.store.identity()
        assert world.store.tail(KEY, after=(0, 0), limit=10) == []

    def test_a_commit_is_read_back_byte_for_byte(self, world: World) -> None:
        commit = commit_on(world.store.load(KEY), (fact("a"), fact("b")), aggregate='{"name":"ä\\u0000"}'.encode())
        answer = world.store.commit(commit)
        assert isinstance(answer, Committed)
        read = world.store.load(KEY)
        assert read.aggregate == commit.aggregate
        assert read.head == answer.head == commit.head_after
        assert tuple(world.store.tail(KEY, after=(0, 0), limit=10)) == commit.entries
        assert read.now >= answer.now > 0

    @pytest.mark.parametrize("text", HARD_TEXTS)
    def test_j5_a_text_that_is_legal_comes_back_as_it_was(self, world: World, text: str) -> None:
        """In names, facts, audit entries, leases and reports: whatever the store keeps texts in."""
        key = GroupKey(f"s {text}", f"g {text}")
        asked = structs.replace(request_entry(), reason=f'{text}\n"{text}\\', requested_by=text)
        report = f'{{"memberName":"{text}"}}'.encode()
        committed(world.store, (fact(f"m {text}"), asked), key=key, leases=LeaseChanges(renew=(text,), reports={text: report}))
        told = [decode(entry).event for entry in world.store.tail(key, after=(0, 0), limit=9)]
        assert told == [fact(f"m {text}"), asked]
        soft = world.store.soft(key)
        assert (list(soft.leases), soft.reports) == ([text], {text: report})

    def test_entries_of_several_revisions_in_one_commit(self, world: World) -> None:
        answer = committed(world.store, (fact("a"), fact("b")), (fact("c"),), (fact("d"), request_entry()))
        assert (answer.head.revision, answer.head.last) == (3, (3, 1))
        assert [e.entry_id for e in world.store.tail(KEY, after=(0, 0), limit=9)] == ["1-0", "1-1", "2-0", "3-0", "3-1"]
        assert committed(world.store).head.last == (4, 0)

    def test_the_tail_begins_after_an_id_and_ends_at_the_limit(self, world: World) -> None:
        committed(world.store, (fact("a"), fact("b")), (fact("c"),), (fact("d"),))
        assert [e.entry_id for e in world.store.tail(KEY, after=(1, 0), limit=2)] == ["1-1", "2-0"]
        assert world.store.tail(KEY, after=(3, 0), limit=2) == []

    def test_the_latest_entries_come_newest_first_and_go_on_below_an_id(self, world: World) -> None:
        assert world.store.latest(KEY, before=None, limit=9) == []
        committed(world.store, (fact("a"), fact("b")), (fact("c"),), (fact("d"),))
        read = tuple(world.store.latest(KEY, before=None, limit=9))
        assert read == tuple(reversed(world.store.tail(KEY, after=(0, 0), limit=9)))
        assert [entry.entry_id for entry in read] == ["3-0", "2-0", "1-1", "1-0"]
        assert [entry.entry_id for entry in world.store.latest(KEY, before=(3, 0), limit=2)] == ["2-0", "1-1"]
        assert [entry.entry_id for entry in world.store.latest(KEY, before=(1, 1), limit=2)] == ["1-0"]
        assert world.store.latest(KEY, before=(1, 0), limit=2) == []

    def test_entries_with_a_gap_are_a_mistake_of_the_caller(self, world: World) -> None:
        commit = commit_on(world.store.load(KEY), (fact("a"), fact("b"), fact("c")))
        for wrong in (commit.entries[1:], commit.entries[::2], ()):
            with pytest.raises(ValueError, match="entr"):
                world.store.commit(replace(commit, entries=wrong))
        assert world.store.load(KEY).head == EMPTY_HEAD

    @pytest.mark.parametrize("revision", [0, 1, 3])
    def test_d4_a_writer_who_is_behind_or_ahead_changes_nothing(self, world: World, revision: int) -> None:
        committed(world.store)
        head = committed(world.store).head
        read = world.store.load(KEY)
        wrong = EMPTY_HEAD if revision == 0 else replace(head, revision=revision, last=(revision, 0))
        answer = world.store.commit(commit_on(read, head=wrong))
        assert isinstance(answer, Conflict)
        assert (answer.what, answer.revision, answer.identity) == ("head", 2, world.store.load(KEY).identity)
        assert world.store.load(KEY).head == head
        assert len(world.store.tail(KEY, after=(0, 0), limit=9)) == 2

    @pytest.mark.parametrize("change", [{"commit_id": "of another branch"}, {"chain": "ab" * 32}, {"exists": False}])
    def test_a_head_of_another_branch_is_a_conflict_though_its_revision_fits(
        self, world: World, change: dict[str, object]
    ) -> None:
        head = committed(world.store).head
        answer = world.store.commit(commit_on(world.store.load(KEY), head=replace(head, **change)))  # type: ignore[arg-type]  # options as they come
        assert isinstance(answer, Conflict)
        assert answer.what == "head"
        assert world.store.load(KEY).head == head

    def test_d4_of_many_creators_one_wins(self, world: World) -> None:
        writers = 30
        together = Barrier(writers)

        def create(number: int) -> Committed | Conflict:
            commit = commit_on(world.store.load(KEY), aggregate=f'{{"writer":{number}}}'.encode())
            together.wait()
            return world.store.commit(commit)

        with ThreadPoolExecutor(writers) as pool:
            answers = list(pool.map(create, range(writers)))
        (winner,) = (number for number, answer in enumerate(answers) if isinstance(answer, Committed))
        assert world.store.load(KEY).aggregate == f'{{"writer":{winner}}}'.encode()
        assert len(world.store.tail(KEY, after=(0, 0), limit=99)) == 1

    def test_d7_no_update_of_threads_that_retry_is_lost(self, world: World) -> None:
        threads, each = 8, 15

        def write(number: int) -> int:
            wins = 0
            while wins < each:
                commit = commit_on(world.store.load(KEY), (fact(f"{number}-{wins}"),))
                wins += isinstance(world.store.commit(commit), Committed)
            return wins

        with ThreadPoolExecutor(threads) as pool:
            assert sum(pool.map(write, range(threads))) == threads * each
        log = world.store.tail(KEY, after=(0, 0), limit=999)
        assert [entry.revision for entry in log] == list(range(1, threads * each + 1))
        assert len({decode(entry).event for entry in log}) == threads * each
        assert [decode(entry).prev for entry in log] == [GENESIS, *(entry.chain for entry in log[:-1])]

    def test_another_identity_is_a_conflict(self, world: World) -> None:
        read = world.store.load(KEY)
        answer = world.store.commit(commit_on(read, identity="another store"))
        assert isinstance(answer, Conflict)
        assert (answer.what, answer.identity) == ("identity", read.identity)
        assert world.store.load(KEY).head == EMPTY_HEAD

    def test_d1_a_commit_that_took_place_is_answered_already(self, world: World) -> None:
        commit = commit_on(world.store.load(KEY), leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",)))
        first = world.store.commit(commit)
        again = world.store.commit(commit)
        assert isinstance(first, Committed)
        assert isinstance(again, Committed)
        assert (again.already, again.head) == (True, first.head)
        other = committed(world.store)
        again = world.store.commit(commit)
        assert isinstance(again, Committed)
        assert again.already
        assert world.store.load(KEY).head == other.head
        assert len(world.store.tail(KEY, after=(0, 0), limit=9)) == 2

    def test_d1_a_deletion_that_took_place_is_answered_already(self, world: World) -> None:
        committed(world.store)
        commit = commit_on(world.store.load(KEY), (deletion(),), aggregate=None)
        assert isinstance(world.store.commit(commit), Committed)
        again = world.store.commit(commit)
        assert isinstance(again, Committed)
        assert again.already

    def test_d1_already_is_said_under_another_identity_too(self, world: World) -> None:
        commit = commit_on(world.store.load(KEY))
        world.store.commit(commit)
        again = world.store.commit(replace(commit, identity="before the failover"))
        assert isinstance(again, Committed)
        assert again.already

    # -- deletion

    def test_a_deleted_aggregate_leaves_its_tombstone(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",), reports={"m": b"r"}))
        gone = deleted(world.store)
        read = world.store.load(KEY)
        assert read.aggregate is None
        assert read.head == gone.head
        assert (read.head.exists, read.head.revision, read.head.last) == (False, 2, (2, 1))
        assert read.tombstone is not None
        assert decode(read.tombstone).event == deletion()
        soft = world.store.soft(KEY)
        assert (soft.leases, soft.reports) == ({}, {})

    def test_a_new_life_continues_past_the_tombstone(self, world: World) -> None:
        committed(world.store)
        deleted(world.store)
        fresh = committed(world.store)
        assert (fresh.head.exists, fresh.head.revision) == (True, 3)
        read = world.store.load(KEY)
        assert (read.head, read.tombstone) == (fresh.head, None)

    def test_a_create_that_did_not_see_the_tombstone_is_a_conflict(self, world: World) -> None:
        committed(world.store)
        gone = deleted(world.store)
        for blind in (EMPTY_HEAD, replace(gone.head, last=(2, 0)), replace(gone.head, chain="cd" * 32)):
            answer = world.store.commit(commit_on(world.store.load(KEY), head=blind))
            assert isinstance(answer, Conflict)
            assert (answer.what, answer.revision) == ("head", 2)
        assert world.store.load(KEY).aggregate is None

    def test_a_deletion_with_much_before_and_after_its_tombstone_is_found(self, world: World) -> None:
        committed(world.store)
        many = tuple(fact(f"m{number}") for number in range(250))
        committed(world.store, (*many, deletion(), request_entry()), aggregate=None)
        head = world.store.load(KEY).head
        assert world.store.append(KEY, expected=head, entries=appended(head, *[request_entry()] * 150)) is not None
        read = world.store.load(KEY)
        assert read.tombstone is not None
        assert (read.tombstone.entry_id, read.head.last) == ("2-250", (2, 401))
        assert committed(world.store).head.revision == 3

    # -- append

    def test_append_raises_no_revision_and_moves_the_head(self, world: World) -> None:
        head = committed(world.store).head
        after = world.store.append(KEY, expected=head, entries=appended(head, request_entry(), request_entry()))
        assert after is not None
        assert (after.revision, after.commit_id, after.last) == (1, head.commit_id, (1, 2))
        read = world.store.load(KEY)
        assert read.head == after
        assert touch(world.store, head).current, "what is cached is current still"
        assert isinstance(world.store.commit(commit_on(read, head=head)), Conflict)
        assert committed(world.store).head.last == (2, 0)

    def test_append_on_another_head_writes_nothing(self, world: World) -> None:
        old = committed(world.store).head
        committed(world.store)
        assert world.store.append(KEY, expected=old, entries=appended(old, request_entry())) is None
        assert len(world.store.tail(KEY, after=(0, 0), limit=9)) == 2

    def test_append_on_a_deleted_aggregate(self, world: World) -> None:
        committed(world.store)
        head = deleted(world.store).head
        after = world.store.append(KEY, expected=head, entries=appended(head, request_entry()))
        assert after is not None
        read = world.store.load(KEY)
        assert (read.head, read.aggregate) == (after, None)
        assert read.head.last == (2, 2)
        assert read.tombstone is not None
        assert read.tombstone.entry_id == "2-0"
        assert committed(world.store).head.revision == 3

    def test_append_without_an_aggregate_or_out_of_turn_is_a_mistake_of_the_caller(self, world: World) -> None:
        with pytest.raises(ValueError, match="do not follow"):
            world.store.append(KEY, expected=EMPTY_HEAD, entries=appended(EMPTY_HEAD, request_entry()))
        head = committed(world.store).head
        for wrong in ((), appended(replace(head, last=(1, 5)), request_entry())):
            with pytest.raises(ValueError, match="do not follow"):
                world.store.append(KEY, expected=head, entries=wrong)

    # -- catching up

    def test_what_went_on_since_a_head_is_the_tail_that_leads_to_the_new_one(self, world: World) -> None:
        seen = committed(world.store, aggregate=LARGE).head
        committed(world.store, (fact("a"), fact("b")), (fact("c"),), aggregate=LARGE)
        appended_to = world.store.load(KEY).head
        head = world.store.append(KEY, expected=appended_to, entries=appended(appended_to, request_entry()))
        assert head is not None
        tail = world.store.catch_up(KEY, seen=seen, limit=10)
        assert isinstance(tail, Tail)
        assert tail.entries == tuple(world.store.tail(KEY, after=seen.last, limit=10))
        assert [each.entry_id for each in tail.entries] == ["2-0", "2-1", "3-0", "3-1"]
        whole = world.store.load(KEY)
        assert (tail.head, tail.identity) == (whole.head, whole.identity)
        assert tail.now > 0

    def test_who_has_seen_all_catches_up_with_nothing(self, world: World) -> None:
        head = committed(world.store, aggregate=LARGE).head
        tail = world.store.catch_up(KEY, seen=head, limit=10)
        assert isinstance(tail, Tail)
        assert (tail.head, tail.entries) == (head, ())

    @pytest.mark.parametrize("why", ["too many", "larger than the aggregate", "another branch", "never there", "deleted"])
    def test_the_whole_is_given_where_the_tail_does_not_serve(self, world: World, why: str) -> None:
        seen = committed(world.store, aggregate=LARGE).head
        for name in ("a", "b", "c"):
            many = tuple(fact(name) for _ in range(30)) if why == "larger than the aggregate" else (fact(name),)
            committed(world.store, many, aggregate=b"{}" if len(many) > 1 else LARGE)
        if why == "another branch":
            seen = replace(seen, chain="ab" * 32)
        if why == "never there":
            seen = replace(seen, last=(9, 0))
        if why == "deleted":
            deleted(world.store)
        read = world.store.catch_up(KEY, seen=seen, limit=2 if why == "too many" else 300)
        assert isinstance(read, Loaded)
        whole = world.store.load(KEY)
        assert (read.head, read.aggregate, read.tombstone) == (whole.head, whole.aggregate, whole.tombstone)

    # -- touch

    def test_a_current_touch_renews_and_reports(self, world: World) -> None:
        head = committed(world.store).head
        answer = touch(world.store, head, ttl_ms=LONG_MS, reports={"m": b"report"})
        assert (answer.current, answer.revision, answer.identity) == (True, 1, world.store.load(KEY).identity)
        soft = world.store.soft(KEY)
        assert (soft.leases, soft.reports) == ({"m": answer.now + LONG_MS}, {"m": b"report"})
        assert world.store.lease(KEY, "m")[0] == answer.now + LONG_MS
        assert world.store.lease(KEY, "other")[0] is None

    def test_a_touch_may_renew_nothing_and_report_nothing(self, world: World) -> None:
        head = committed(world.store).head
        assert touch(world.store, head, renew=()).current
        soft = world.store.soft(KEY)
        assert (soft.leases, soft.reports) == ({}, {})

    @pytest.mark.parametrize("change", [{"revision": 1}, {"revision": 3}, {"commit_id": "other"}, {"identity": "other"}])
    def test_a_touch_of_what_has_moved_changes_nothing(self, world: World, change: dict[str, object]) -> None:
        committed(world.store)
        head = committed(world.store).head
        answer = touch(world.store, head, reports={"m": b"report"}, **change)
        assert (answer.current, answer.revision) == (False, 2)
        soft = world.store.soft(KEY)
        assert (soft.leases, soft.reports) == ({}, {})

    def test_touches_of_several_groups_are_answered_each_by_itself(self, world: World) -> None:
        """One is current, one has moved, and one does not exist."""
        keys = [GroupKey("orders", f"g{number}") for number in range(3)]
        heads = [committed(world.store, key=key).head for key in keys[:2]] + [EMPTY_HEAD]
        moved = committed(world.store, key=keys[1]).head
        touches = [
            Touch(
                key=key,
                revision=head.revision,
                commit_id=head.commit_id,
                identity=world.store.load(key).identity,  # in a cluster that of its own node
                renew=("m",),
                ttl_ms=LONG_MS,
            )
            for key, head in zip(keys, heads, strict=True)
        ]
        answers = world.store.touch_many(touches)
        told = [(answer.current, answer.revision) for answer in answers if isinstance(answer, Touched)]
        assert told == [(True, heads[0].revision), (False, moved.revision), (False, 0)]
        assert [list(world.store.soft(key).leases) for key in keys] == [["m"], [], []]
        assert world.store.touch_many([]) == []

    def test_a_touch_of_nothing_says_so(self, world: World) -> None:
        answer = touch(world.store, EMPTY_HEAD)
        assert (answer.current, answer.revision) == (False, 0)
        assert world.store.soft(KEY).leases == {}

    def test_a_deadline_never_moves_back(self, world: World) -> None:
        head = committed(world.store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",))).head
        before, _ = world.store.lease(KEY, "m")
        touch(world.store, head, ttl_ms=TTL_MS)
        committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, renew=("m",)))
        committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, renew_all=True))
        assert world.store.lease(KEY, "m")[0] == before

    # -- what a commit does to leases, and what it may rest on

    def test_lease_changes_of_a_commit(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, renew=("a", "b", "c"), reports={"a": b"1", "b": b"2"}))
        answer = committed(world.store, leases=LeaseChanges(ttl_ms=LONG_MS, renew_all=True, renew=("d",), remove=("a",)))
        soft = world.store.soft(KEY)
        assert soft.leases == dict.fromkeys(("b", "c", "d"), answer.now + LONG_MS)
        assert soft.reports == {"b": b"2"}

    def test_an_expiry_needs_a_lapsed_lease(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, renew=("m",)))
        committed(world.store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("runs",)))

        def expire(*members: str) -> Committed | Conflict:
            commit = commit_on(world.store.load(KEY), guards=LeaseGuards(lapsed=members), leases=LeaseChanges(remove=members))
            return world.store.commit(commit)

        world.wait(TTL_MS + 2)
        for members in (("runs",), ("m", "runs"), ("m", "who has none")):
            refused = expire(*members)
            assert isinstance(refused, Conflict)
            assert refused.what == "lease"
        assert isinstance(expire("m"), Committed)
        assert world.store.soft(KEY).leases.keys() == {"runs"}

    def test_a_renewal_between_look_and_expiry_wins(self, world: World) -> None:
        head = committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, renew=("m",))).head
        world.wait(TTL_MS + 2)
        commit = commit_on(world.store.load(KEY), guards=LeaseGuards(lapsed=("m",)), leases=LeaseChanges(remove=("m",)))
        assert touch(world.store, head, ttl_ms=LONG_MS).current
        answer = world.store.commit(commit)
        assert isinstance(answer, Conflict)
        assert answer.what == "lease"

    def test_a_rejoin_needs_the_lease_that_was_read(self, world: World) -> None:
        head = committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, renew=("m",))).head
        read, _ = world.store.lease(KEY, "m")

        def rejoin(unchanged: dict[str, int | None]) -> Committed | Conflict:
            return world.store.commit(commit_on(world.store.load(KEY), guards=LeaseGuards(unchanged=unchanged)))

        assert isinstance(rejoin({"m": None}), Conflict)
        assert isinstance(rejoin({"m": read, "other": 5}), Conflict)
        touch(world.store, head, ttl_ms=LONG_MS)
        assert isinstance(rejoin({"m": read}), Conflict)
        assert isinstance(rejoin({"m": world.store.lease(KEY, "m")[0], "other": None}), Committed)

    def test_a_deletion_may_need_that_no_lease_runs(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, renew=("m",)))
        committed(world.store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("runs",)))
        due(world.store, KEY, lease_ttl_ms=LONG_MS, grace=True)
        world.wait(TTL_MS + 2)

        def delete() -> Committed | Conflict:
            guards = LeaseGuards(none_running=True)
            return world.store.commit(commit_on(world.store.load(KEY), (deletion(),), aggregate=None, guards=guards))

        assert isinstance(delete(), Conflict)
        committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, remove=("runs",)))
        due(world.store, KEY, lease_ttl_ms=LONG_MS, grace=True)
        assert isinstance(delete(), Committed)

    def test_a_deletion_may_need_a_latest_deadline(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",)))
        due(world.store, KEY, lease_ttl_ms=LONG_MS * 9, grace=True)
        latest, _ = world.store.lease(KEY, "m")
        assert latest is not None

        def commit(at_most: int) -> Committed | Conflict:
            return world.store.commit(commit_on(world.store.load(KEY), guards=LeaseGuards(latest_at_most=at_most)))

        assert isinstance(commit(latest - 1), Conflict)
        assert isinstance(commit(latest), Committed)

    def test_a_member_removed_and_renewed_in_one_commit_begins_a_new_lease(self, world: World) -> None:
        """Also when it is the only one, and its report goes: no key may vanish in between."""
        committed(world.store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",), reports={"m": b"old"}))
        answer = committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, remove=("m",), renew=("m",)))
        soft = world.store.soft(KEY)
        assert (soft.leases, soft.reports) == ({"m": answer.now + TTL_MS}, {})
        answer = committed(
            world.store, leases=LeaseChanges(ttl_ms=TTL_MS, remove=("m", "never"), renew=("m", "n"), reports={"m": b"new"})
        )
        soft = world.store.soft(KEY)
        assert (soft.leases, soft.reports) == (dict.fromkeys(("m", "n"), answer.now + TTL_MS), {"m": b"new"})

    # -- due

    def test_the_first_look_starts_a_grace(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=1, renew=("m",)))
        world.wait(3)
        first = due(world.store, KEY, lease_ttl_ms=LONG_MS, grace=False)
        assert (first.lapsed, first.looked_at, first.entries) == ({}, 0, 1)
        assert first.grace_until == first.now + LONG_MS
        second = due(world.store, KEY, lease_ttl_ms=LONG_MS, grace=False)
        assert (second.lapsed, second.looked_at, second.grace_until) == ({}, first.now, first.grace_until)

    def test_looks_in_time_give_what_has_lapsed_once_the_grace_is_over(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=1, renew=("m",)))
        committed(world.store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("n",)))
        deadline, _ = world.store.lease(KEY, "m")
        look = due(world.store, KEY, lease_ttl_ms=600, grace=False)
        while look.grace_until:
            assert look.lapsed == {}
            assert look.now < look.grace_until
            world.wait(20)  # where it takes longer than the lease, another grace begins
            look = due(world.store, KEY, lease_ttl_ms=600, grace=False)
        assert (look.lapsed, look.grace_until, look.entries) == ({"m": deadline}, 0, 2)
        assert look.identity == world.store.load(KEY).identity

    def test_c1_a_gap_between_looks_starts_a_grace(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=1, renew=("m",)))
        due(world.store, KEY, lease_ttl_ms=40, grace=False)
        world.wait(100)
        look = due(world.store, KEY, lease_ttl_ms=40, grace=False)
        assert (look.lapsed, look.grace_until) == ({}, look.now + 40)

    def test_a_grace_may_be_asked_for(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=1, renew=("m",)))
        due(world.store, KEY, lease_ttl_ms=1, grace=False)
        look = due(world.store, KEY, lease_ttl_ms=LONG_MS, grace=True)
        assert (look.lapsed, look.grace_until) == ({}, look.now + LONG_MS)

    def test_a_look_at_nothing_leaves_nothing(self, world: World) -> None:
        look = due(world.store, KEY, lease_ttl_ms=TTL_MS, grace=True)
        assert (look.lapsed, look.grace_until, look.entries, look.looked_at) == ({}, 0, 0, 0)
        committed(world.store)
        assert due(world.store, KEY, lease_ttl_ms=TTL_MS, grace=False).looked_at == 0

    def test_the_marks_of_looks_are_no_members(self, world: World) -> None:
        committed(world.store)
        first = due(world.store, KEY, lease_ttl_ms=TTL_MS, grace=True)
        assert world.store.soft(KEY).leases == {}
        committed(world.store, leases=LeaseChanges(ttl_ms=LONG_MS, renew_all=True))
        look = due(world.store, KEY, lease_ttl_ms=LONG_MS, grace=False)
        assert (look.entries, look.looked_at) == (0, first.now)
        assert look.grace_until in {first.grace_until, 0}

    def test_a_look_tells_the_earliest_deadline_and_where_the_group_stands(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",)))
        head = committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, renew=("n",))).head
        earliest, _ = world.store.lease(KEY, "n")
        for grace in (True, False):
            look = due(world.store, KEY, lease_ttl_ms=LONG_MS, grace=grace)
            assert (look.earliest, look.entries) == (earliest, 2)
            assert (look.revision, look.commit_id) == (head.revision, head.commit_id)
        nothing = due(world.store, GroupKey("orders", "nobody"), lease_ttl_ms=LONG_MS, grace=True)
        assert (nothing.earliest, nothing.revision, nothing.commit_id) == (0, 0, "")

    def test_many_groups_are_looked_at_each_by_itself(self, world: World) -> None:
        """In the order asked for: one that does not exist, one whose grace is over, one that was never looked at."""
        old, fresh, nobody = (GroupKey("orders", name) for name in ("old", "fresh", "nobody"))
        committed(world.store, key=old, leases=LeaseChanges(ttl_ms=1, renew=("m",)))
        due(world.store, old, lease_ttl_ms=1, grace=True)
        world.wait(5)
        committed(world.store, key=fresh, leases=LeaseChanges(ttl_ms=1, renew=("m",)))
        world.wait(5)
        deadline, _ = world.store.lease(old, "m")
        first, second, third = world.store.due_many([nobody, old, fresh], lease_ttl_ms=LONG_MS, grace=False)
        assert isinstance(first, Due)
        assert isinstance(second, Due)
        assert isinstance(third, Due)
        assert (first.revision, first.looked_at, first.lapsed) == (0, 0, {})
        assert (second.lapsed, second.grace_until) == ({"m": deadline}, 0)
        assert (third.lapsed, third.grace_until, third.looked_at) == ({}, third.now + LONG_MS, 0)
        again = world.store.due_many([fresh], lease_ttl_ms=LONG_MS, grace=False)
        assert [look.looked_at for look in again if isinstance(look, Due)] == [third.now]
        assert world.store.due_many([], lease_ttl_ms=LONG_MS, grace=False) == []

    def test_hundreds_of_groups_are_looked_at_in_order(self, world: World) -> None:
        keys = [GroupKey("orders", f"g{number}") for number in range(450)]
        commits = {key: committed(world.store, key=key).head.commit_id for key in keys[::90]}
        expected = [commits.get(key, "") for key in keys]
        looks = world.store.due_many(keys, lease_ttl_ms=LONG_MS, grace=False)
        assert [look.commit_id for look in looks if isinstance(look, Due)] == expected
        stands = world.store.standings(keys)
        assert [standing.commit_id for standing in stands if isinstance(standing, Standing)] == expected

    # -- standings

    def test_standings_tell_whether_what_was_read_is_current(self, world: World) -> None:
        stream, group, nobody = StreamKey("orders"), KEY, GroupKey("orders", "nobody")
        committed(world.store, key=stream)
        head = committed(world.store).head
        committed(world.store, key=GroupKey("orders", "deleted"))
        committed(world.store, (deletion(),), key=GroupKey("orders", "deleted"), aggregate=None)
        read = world.store.load(group)
        keys = (nobody, group, stream, GroupKey("orders", "deleted"))
        found = [standing for standing in world.store.standings(keys) if isinstance(standing, Standing)]
        assert [standing.revision for standing in found] == [0, 1, 1, 0]
        assert (found[1].commit_id, found[1].identity) == (head.commit_id, read.identity)
        assert found[1].now >= read.now
        committed(world.store)
        (moved,) = world.store.standings([group])
        assert isinstance(moved, Standing)
        assert moved.revision == 2
        assert moved.commit_id != head.commit_id

    def test_missing_leases_are_granted_and_others_left(self, world: World) -> None:
        committed(world.store, leases=LeaseChanges(ttl_ms=TTL_MS, renew=("a",)))
        before, _ = world.store.lease(KEY, "a")
        world.store.grant_missing_leases(KEY, ["a", "b"], ttl_ms=LONG_MS)
        soft = world.store.soft(KEY)
        assert soft.leases["a"] == before
        assert soft.leases["b"] > soft.now + LONG_MS - 5_000
        nobody = GroupKey("orders", "nobody")
        world.store.grant_missing_leases(nobody, ["a"], ttl_ms=LONG_MS)
        assert world.store.soft(nobody).leases == {}

    # -- reads that fail closed, one aggregate at a time

    def test_e1_a_missing_log_is_no_empty_aggregate(self, world: World) -> None:
        committed(world.store)
        commit = commit_on(world.store.load(KEY))
        world.lose_log(KEY)
        self._is_corrupt(world, "log")
        with pytest.raises(CorruptAggregate):
            world.store.commit(commit)

    def test_e1_missing_metadata_is_no_deletion(self, world: World) -> None:
        committed(world.store)
        committed(world.store)
        world.lose_metadata(KEY)
        self._is_corrupt(world, "without a deletion")
        answer = world.store.commit(commit_on(world.store.load(GroupKey("other", "group")), head=EMPTY_HEAD))
        assert isinstance(answer, Conflict)
        assert answer.what == "head"

    def test_e1_metadata_newer_than_the_log(self, world: World) -> None:
        committed(world.store)
        committed(world.store)
        commit = commit_on(world.store.load(KEY))
        world.lose_last_entry(KEY)
        self._is_corrupt(world, "its log ends at 1-0")
        with pytest.raises(CorruptAggregate):
            world.store.commit(commit)

    def test_e1_a_revision_beside_its_aggregate_that_does_not_fit(self, world: World) -> None:
        committed(world.store)
        world.set_revision(KEY, 7)
        self._is_corrupt(world, "revision 7")

    def test_e1_both_lost_is_nothing_and_the_index_still_names_it(self, world: World) -> None:
        world.store.index_add(KEY.stream)
        committed(world.store)
        world.lose_metadata(KEY)
        world.lose_log(KEY)
        assert world.store.load(KEY).head == EMPTY_HEAD
        assert world.store.streams() == ["orders"]

    @pytest.mark.parametrize(("schema", "layout", "why"), [(1, 1, "coord adopt"), (999, 2, "unknown"), (2, 3, "unknown")])
    def test_e5_other_versions_are_refused_untouched(self, world: World, schema: int, layout: int, why: str) -> None:
        committed(world.store)
        world.set_versions(KEY, schema, layout)
        self._is_corrupt(world, why)

    def _is_corrupt(self, world: World, why: str) -> None:
        with pytest.raises(CorruptAggregate, match=why) as caught:
            world.store.load(KEY)
        assert caught.value.key == KEY
        fine = GroupKey("orders", "another")
        committed(world.store, key=fine)
        assert world.store.load(fine).head.revision == 1

    # -- names

    def test_d11_pairs_that_join_to_one_text_are_two_groups(self, world: World) -> None:
        one, other = GroupKey("a:b", "c"), GroupKey("a", "b:c")
        committed(world.store, key=one, aggregate=b'"one"', leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",)))
        committed(world.store, key=other, aggregate=b'"other"')
        assert world.store.load(one).aggregate == b'"one"'
        assert world.store.soft(other).leases == {}
        deleted(world.store, key=one)
        assert world.store.load(other).aggregate == b'"other"'

    def test_a_stream_and_a_group_of_one_name_are_two_aggregates(self, world: World) -> None:
        stream, group = StreamKey("orders:stream"), GroupKey("orders", "stream")
        committed(world.store, key=stream, aggregate=b'"stream"')
        committed(world.store, key=group, aggregate=b'"group"')
        assert world.store.load(stream).aggregate == b'"stream"'
        assert world.store.load(group).aggregate == b'"group"'

    # -- what belongs to no aggregate

    def test_the_index_is_a_sorted_set(self, world: World) -> None:
        for prefix in ("b", "a", "b", "ä"):
            world.store.index_add(StreamKey(prefix))
        assert world.store.streams() == ["a", "b", "ä"]
        world.store.index_remove(StreamKey("b"))
        world.store.index_remove(StreamKey("never there"))
        assert world.store.streams() == ["a", "ä"]

    def test_the_turn_stays_with_its_holder_until_it_is_long_ago(self, world: World) -> None:
        assert world.store.last_tick()[0] == 0
        first = world.store.take_turn("one", takeover_ms=LONG_MS)
        assert (first.mine, first.ticked_at) == (True, 0)
        other = world.store.take_turn("two", takeover_ms=LONG_MS)
        assert (other.mine, other.ticked_at) == (False, first.now)
        again = world.store.take_turn("one", takeover_ms=LONG_MS)
        assert (again.mine, again.ticked_at) == (True, first.now)
        ticked_at, now = world.store.last_tick()
        assert (ticked_at, now >= ticked_at) == (again.now, True)
        world.wait(TTL_MS + 2)
        taken = world.store.take_turn("two", takeover_ms=TTL_MS)
        assert (taken.mine, taken.ticked_at) == (True, again.now)
        assert not world.store.take_turn("one", takeover_ms=LONG_MS).mine

    def test_requests_of_no_aggregate_are_kept_and_the_clock_runs(self, world: World) -> None:
        world.store.append_request(b'{"type":"AdminRequest"}')
        before = world.store.ping()
        world.wait(5)
        assert world.store.ping() >= before + 4

    def test_requests_of_no_aggregate_are_read_newest_first_and_in_pages(self, world: World) -> None:
        assert world.store.requests(before=None, limit=9) == []
        bodies = [f'{{"number":{number},"name":"ä\\u0000\\n"}}'.encode() for number in range(5)]
        for body in bodies:
            world.store.append_request(body)
        first = world.store.requests(before=None, limit=3)
        rest = world.store.requests(before=first[-1][0], limit=3)
        assert [body for _, body in (*first, *rest)] == bodies[::-1]
        assert len({place for place, _ in (*first, *rest)}) == 5
        assert world.store.requests(before=rest[-1][0], limit=3) == []
