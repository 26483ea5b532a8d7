"""A real cluster whose nodes die, whose slots move, whose addresses change: it heals by itself, and no commit runs twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event as Signal
from threading import Thread

import pytest

from coord.names import AggregateKey, GroupKey
from coord.rediscommands.keys import AggregateKeys, Keys
from coord.rediscommands.settings import Address, ClusterSettings, RedisSettings
from coord.rediscommands.slots import slot_of
from coord.store.base import (
    Committed,
    Conflict,
    LeaseChanges,
    LeaseGuards,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    Touch,
)
from coord.store.redis.store import RedisStore
from coord.streams.provisioning import ShardStreams
from tests.servers import wait_until
from tests.store.author import KEY, commit_on, committed, due
from tests.store.redis_server import RedisServer
from tests.tap import Tap
from tests.topologies.servers import HOST, PREFIX, Cluster, store_of, worries
from tests.topologies.writer import HEALED_S_MAX, SLACK_S, Writer

TIMEOUT_MS = 1000
LONG_MS = 60_000


def keys_of(key: AggregateKey = KEY) -> AggregateKeys:
    return Keys(PREFIX).aggregate(key)


def group_on(cluster: Cluster, node: RedisServer) -> GroupKey:
    """Give a group that lives on a node."""
    for number in range(1000):
        key = GroupKey("orders", f"group-{number}")
        if cluster.master_of(keys_of(key).metadata) is node:
            return key
    raise AssertionError("no group found")


@pytest.fixture
def store(cluster: Cluster) -> Iterator[RedisStore]:
    store = cluster.store()
    yield store
    store.close()


@contextmanager
def tapped(cluster: Cluster, node: RedisServer, *, timeout_ms: int = TIMEOUT_MS) -> Iterator[tuple[Tap, RedisStore]]:
    """Give a store that reaches one node through a tap, by the address map."""
    with Tap(node.port) as tap:
        reached = {Address(HOST, node.port): Address(HOST, tap.port)}
        store = cluster.store(timeout_ms=timeout_ms, reached=reached)
        yield tap, store
        store.close()


# -- topology changes


@pytest.mark.slow
def test_f4_the_master_of_a_groups_slot_is_killed(own_cluster: Cluster) -> None:
    """Another node of the same store takes over, seen by every step of the store; commits go on by themselves."""
    store = own_cluster.store(timeout_ms=TIMEOUT_MS)
    committed(store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",)))
    before = store.load(KEY)
    master = own_cluster.master_of(keys_of().metadata)
    with Writer(store) as writer:
        writer.wait_for_more()
        master.stop()
        assert writer.wait_for_more() < HEALED_S_MAX
    writer.judge(store, lost_at_most=5)
    assert store.load(KEY).identity != before.identity
    master.start()
    own_cluster.wait_whole()
    committed(store)
    store.close()


def test_f1_every_step_sees_that_the_store_is_another_one(own_cluster: Cluster) -> None:
    """Of two groups only the one whose node failed over is on another store. What was cached before is not current."""
    store = own_cluster.store(timeout_ms=TIMEOUT_MS)
    master = own_cluster.master_of(keys_of().metadata)
    other = group_on(own_cluster, next(node for node in own_cluster.masters() if node is not master))
    head = committed(store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",))).head
    committed(store, key=other)
    read, elsewhere = store.load(KEY), store.load(other)
    stale = commit_on(read)
    wait_until(lambda: own_cluster.replica_of(master).call("DBSIZE") > 0, what="the replica has it")
    replica = own_cluster.replica_of(master)
    replica.call("CLUSTER", "FAILOVER", "TAKEOVER")
    wait_until(lambda: own_cluster.master_of(keys_of().metadata) is replica, timeout_s=HEALED_S_MAX, what="the replica took over")

    def touched() -> bool:
        try:
            answer = store.touch(
                Touch(key=KEY, revision=1, commit_id=head.commit_id, identity=read.identity, renew=("m",), ttl_ms=LONG_MS * 9)
            )
        except StoreUnavailable:
            return False
        assert answer.identity != read.identity or answer.current, "on the old master until the change is known"
        return not answer.current

    wait_until(touched, timeout_s=HEALED_S_MAX, what="a touch is answered by the new master")
    now = store.load(KEY)
    assert (now.head, now.identity != read.identity) == (head, True)
    deadline, _ = store.lease(KEY, "m")
    assert deadline is not None
    assert deadline < now.now + LONG_MS * 2, "a touch under the old identity renewed nothing"
    answer = store.commit(stale)
    assert isinstance(answer, Conflict)
    assert (answer.what, answer.identity) == ("identity", now.identity)
    assert due(store, KEY, lease_ttl_ms=LONG_MS, grace=False).identity == now.identity
    assert store.load(other).identity == elsewhere.identity
    store.close()


@pytest.mark.slow
def test_f4_all_nodes_restart_with_new_addresses(own_cluster: Cluster) -> None:
    """The seeds are names that lead elsewhere from now on, here taps; nothing else that was known is of use."""
    with Tap(own_cluster.nodes[1].port) as one, Tap(own_cluster.nodes[4].port) as two:
        seeds = (Address(HOST, one.port), Address(HOST, two.port))
        store = own_cluster.store(timeout_ms=TIMEOUT_MS, nodes=seeds)
        committed(store)
        before = store.load(KEY).identity
        own_cluster.move_to_new_addresses()
        for tap, node in ((one, own_cluster.nodes[1]), (two, own_cluster.nodes[4])):
            tap._upstream = (HOST, node.port)

        def healed() -> bool:
            try:
                return store.load(KEY).identity != before
            except StoreUnavailable:
                return False

        begun = time.monotonic()
        wait_until(healed, timeout_s=HEALED_S_MAX, what="the store is found again")
        assert time.monotonic() - begun < HEALED_S_MAX
        assert committed(store).head.revision == 1, "a server without a disk forgets"
        store.close()


def test_f4_a_node_that_is_silent_spoils_no_looks_at_groups_of_others(cluster: Cluster) -> None:
    store = cluster.store(timeout_ms=TIMEOUT_MS)
    keys = [GroupKey("orders", f"g{number}") for number in range(30)]
    for key in keys:
        committed(store, key=key)
    silent = cluster.master_of(keys_of(keys[0]).metadata)
    lost = [cluster.master_of(keys_of(key).metadata) is silent for key in keys]
    assert not all(lost)
    silent.freeze()
    try:
        looks: list[object] = [*store.due_many(keys, lease_ttl_ms=LONG_MS, grace=False)]
        stands: list[object] = [*store.standings(keys)]
    finally:
        silent.thaw()
    for answers in (looks, stands):
        assert [isinstance(answer, StoreUnavailable) for answer in answers] == lost
    store.close()


def test_f4_a_slot_moves_under_commits(cluster: Cluster) -> None:
    """Its keys go one by one; a commit is whole or not at all at each moment, and each is done once."""
    store = cluster.store(timeout_ms=TIMEOUT_MS)
    committed(store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",), reports={"m": b"r"}))
    slot = slot_of(keys_of().metadata)
    source = cluster.master_of(keys_of().metadata)
    target = next(node for node in cluster.masters() if node is not source)
    with Writer(store) as writer:
        writer.wait_for_more()
        cluster.migrate_begin(slot, source, target)
        writer.wait_for_more()
        assert cluster.migrate_keys(slot, source, target, count=1) == 1
        time.sleep(0.3)
        while cluster.migrate_keys(slot, source, target, count=1):
            pass
        writer.wait_for_more()
        cluster.migrate_end(slot, source, target)
        assert writer.wait_for_more() < HEALED_S_MAX
    writer.judge(store, lost_at_most=0)
    assert cluster.master_of(keys_of().metadata) is target
    store.close()


def test_f4_a_commit_in_a_moving_slot_lets_no_key_vanish_on_its_way(cluster: Cluster) -> None:
    """The last member goes and another comes: where a key that is gone could not be made again, nothing is half done."""
    store = cluster.store(timeout_ms=TIMEOUT_MS)
    committed(store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",), reports={"m": b"r"}))
    slot = slot_of(keys_of().metadata)
    source = cluster.master_of(keys_of().metadata)
    target = next(node for node in cluster.masters() if node is not source)
    cluster.migrate_begin(slot, source, target)
    answer = committed(store, leases=LeaseChanges(ttl_ms=LONG_MS, remove=("m",), renew=("n",), reports={"n": b"new"}))
    soft = store.soft(KEY)
    assert (soft.leases, soft.reports) == ({"n": answer.now + LONG_MS}, {"n": b"new"})
    commit = commit_on(store.load(KEY))
    for _ in range(2):
        cluster.migrate_keys(slot, source, target, count=1)
    with pytest.raises(StoreUnavailable, match="TRYAGAIN") as caught:
        store.commit(commit)
    assert not isinstance(caught.value, OutcomeUnknown)
    while cluster.migrate_keys(slot, source, target, count=1):
        pass
    cluster.migrate_end(slot, source, target)
    assert isinstance(store.commit(commit_on(store.load(KEY))), Committed)
    assert store.load(KEY).head.revision == 3
    assert store.soft(KEY).leases == soft.leases
    store.close()


def test_f4_a_slot_that_nobody_serves_is_unavailable_and_heals(own_cluster: Cluster) -> None:
    """Where the cluster serves the rest: the other slots go on."""
    for node in own_cluster.nodes:
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    store = own_cluster.store(timeout_ms=TIMEOUT_MS)
    master = own_cluster.master_of(keys_of().metadata)
    other = group_on(own_cluster, next(node for node in own_cluster.masters() if node is not master))
    committed(store)
    slot = slot_of(keys_of().metadata)
    for node in own_cluster.masters():
        node.call("CLUSTER", "DELSLOTS", slot)
    for _ in range(3):
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable, match=f"CLUSTERDOWN|serves slot {slot}") as caught:
            store.load(KEY)
        assert not isinstance(caught.value, OutcomeUnknown)
        assert time.monotonic() - begun < TIMEOUT_MS / 1000 + SLACK_S
    committed(store, key=other)
    for node in own_cluster.masters():
        node.call("CLUSTER", "SETSLOT", slot, "NODE", own_cluster.id_of(master))
    wait_until(lambda: _is_there(store), timeout_s=HEALED_S_MAX, what="the slot is served")
    assert committed(store).head.revision == 2
    store.close()


def _is_there(store: RedisStore) -> bool:
    try:
        return store.load(KEY).head.revision == 1
    except StoreUnavailable:
        return False


def test_f4_many_threads_in_doubt_ask_for_the_map_once_in_a_while(cluster: Cluster) -> None:
    store = cluster.store()
    committed(store)
    topology = store._commands._template._topology

    def asked() -> int:
        told = [node.call("INFO", "commandstats") for node in cluster.nodes]
        return sum(
            int(text.split(b"cmdstat_cluster|slots:calls=")[1].split(b",")[0]) for text in told if b"cluster|slots" in text
        )

    before = asked()
    end = time.monotonic() + 1

    def doubt(_: int) -> None:
        while time.monotonic() < end:
            topology.doubt()
            store.load(KEY)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(doubt, range(16)))
    assert 2 <= asked() - before <= 15, "at most one look in a tenth of a second"
    store.close()


# -- lost answers


@pytest.mark.parametrize("then_cut", [False, True])
def test_d1_a_commit_whose_answer_was_lost_is_found_on_its_node(cluster: Cluster, store: RedisStore, then_cut: bool) -> None:
    committed(store)
    with tapped(cluster, cluster.master_of(keys_of().metadata)) as (tap, through):
        commit = commit_on(through.load(KEY), commit_id="the-lost-one")
        tap.drop_replies(containing=b"the-lost-one", times=1, then_cut=then_cut)
        answer = through.commit(commit)
    assert isinstance(answer, Committed)
    assert (answer.already, tap.dropped) == (True, 1)
    assert [entry.entry_id for entry in store.tail(KEY, after=(0, 0), limit=9)] == ["1-0", "2-0"]


def test_d1_the_answer_is_lost_and_the_master_with_it(own_cluster: Cluster) -> None:
    """The replica has the commit, and recognises it, though it is another store."""
    direct = own_cluster.store()
    committed(direct)
    master = own_cluster.master_of(keys_of().metadata)
    replica = own_cluster.replica_of(master)
    with tapped(own_cluster, master) as (tap, through):
        commit = commit_on(through.load(KEY), commit_id="the-lost-one")
        tap.drop_replies(containing=b"the-lost-one")
        with pytest.raises(OutcomeUnknown):
            through.commit(commit)
        wait_until(lambda: direct.load(KEY).head.revision == 2, what="the commit took place")
        wait_until(lambda: _offset(replica) == _offset(master), what="the replica has it", timeout_s=HEALED_S_MAX)
        master.stop()
        replica.call("CLUSTER", "FAILOVER", "TAKEOVER")

        def again() -> Committed | Conflict | None:
            try:
                return through.commit(commit)
            except StoreUnavailable:
                return None

        answer = wait_until(again, timeout_s=HEALED_S_MAX, what="the replica answers")
    assert isinstance(answer, Committed)
    assert answer.already
    assert len(direct.tail(KEY, after=(0, 0), limit=9)) == 2
    direct.close()


def _offset(node: RedisServer) -> int:
    told: bytes = node.call("INFO", "replication")
    fields = dict(line.split(b":", 1) for line in told.splitlines() if b":" in line)
    return int(fields.get(b"slave_repl_offset", fields[b"master_repl_offset"]))


def test_d1_nothing_but_a_commit_is_ever_sent_again(cluster: Cluster) -> None:
    """An audit entry has no id by which a repeat is known: its answer may be lost, it is not written twice."""
    requests = Keys(PREFIX).requests
    node = cluster.master_of(requests)
    with tapped(cluster, node) as (tap, through):
        for number, then_cut in enumerate((False, True), 1):
            through.append_request(b"the first")
            node.call("DEL", requests)
            tap.drop_replies(containing=b"the audit entry", then_cut=then_cut)
            with pytest.raises(StoreUnavailable):
                through.append_request(b"the audit entry")
            tap.pass_through()
            assert (node.call("XLEN", requests), tap.dropped) == (1, number)


def test_no_redirection_is_followed_for_ever(cluster: Cluster) -> None:
    """An address map that leads every node's address to the wrong one: each answers MOVED."""
    ports = [node.port for node in cluster.masters()]
    reached = {Address(HOST, port): Address(HOST, ports[(place + 1) % 3]) for place, port in enumerate(ports)}
    store = cluster.store(timeout_ms=TIMEOUT_MS, reached=reached)
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="MOVED"):
        store.load(KEY)
    assert time.monotonic() - begun < TIMEOUT_MS / 1000 + SLACK_S
    store.close()


# -- scripts, slots, many keys


@pytest.mark.slow
def test_d10_scripts_vanish_everywhere_and_a_new_master_never_had_them(own_cluster: Cluster) -> None:
    store = own_cluster.store(timeout_ms=TIMEOUT_MS)
    committed(store)
    master = own_cluster.master_of(keys_of().metadata)
    replica = own_cluster.replica_of(master)
    done = Signal()

    def flush() -> None:
        while not done.wait(0.02):
            for node in own_cluster.nodes:
                node.call("SCRIPT", "FLUSH")

    flusher = Thread(target=flush)
    flusher.start()
    try:
        for number in range(40):
            assert committed(store).head.revision == number + 2
            due(store, KEY, lease_ttl_ms=LONG_MS, grace=False)
            store.touch(Touch(key=KEY, revision=1, commit_id="", identity="", renew=("m",), ttl_ms=1))
    finally:
        done.set()
        flusher.join()
    replica.call("CLUSTER", "FAILOVER", "TAKEOVER")
    wait_until(lambda: own_cluster.master_of(keys_of().metadata) is replica, timeout_s=HEALED_S_MAX, what="a take-over")
    assert b"number_of_cached_scripts:0" in replica.call("INFO", "memory")
    with Writer(store) as writer:
        writer.wait_for_more()
    writer.judge(store, lost_at_most=0)
    store.close()


def test_d11_all_keys_of_a_group_are_in_one_slot(cluster: Cluster, store: RedisStore) -> None:
    """By the cluster's own count, for names with everything in them that an API would let through."""
    for number in range(60):
        key = GroupKey(f"or%ders:{number}", f"group:{number}%:é")
        committed(store, key=key, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",), reports={"m": b"r"}))
        keys = keys_of(key)
        node = cluster.master_of(keys.metadata)
        slot = node.call("CLUSTER", "KEYSLOT", keys.metadata)
        found = set(node.call("CLUSTER", "GETKEYSINSLOT", slot, 1000))
        assert {name.encode() for name in (keys.metadata, keys.events, keys.leases, keys.reports)} <= found


def test_shards_of_all_slots_are_made_looked_at_drained_and_removed(cluster: Cluster) -> None:
    commands = cluster.store()._commands
    shards = ShardStreams(commands)
    made = shards.provision("orders", range(300), {"g": "0"})
    assert len(made.keys) == len(made.groups) == 300
    assert {cluster.master_of(key).port for key in made.keys[:20]} == {node.port for node in cluster.masters()}
    assert all(node.call("DBSIZE") > 50 for node in cluster.masters())
    assert shards.missing("orders", range(302)) == ("orders:300", "orders:301")
    cluster.call("orders:7", "XADD", "orders:7", "*", "n", 1)
    assert [shards.prove_drained("orders", shard).is_drained for shard in (6, 7)] == [True, False]
    assert len(shards.destroy_consumer_group("orders", range(10), "g")) == 10
    assert len(shards.remove_created(made)) == 299
    assert shards.delete_if_drained("orders", 7).is_drained is False
    commands.close()


def test_a_batch_goes_on_where_its_map_was_old(cluster: Cluster) -> None:
    """A slot moved since the map was asked for: what was not run is sent to where it is now, in its place among the answers."""
    commands = cluster.store()._commands
    shards = ShardStreams(commands)
    shards.provision("orders", range(20), {"g": "0"})
    source = cluster.master_of("orders:3")
    target = next(node for node in cluster.masters() if node is not source)
    slot = slot_of("orders:3")
    cluster.migrate_begin(slot, source, target)
    cluster.migrate_keys(slot, source, target)
    assert shards.missing("orders", range(20)) == (), "ASK"
    cluster.migrate_end(slot, source, target)
    assert shards.missing("orders", range(21)) == ("orders:20",), "MOVED"
    assert shards.provision("orders", range(21), {"g": "0"}).keys == ("orders:20",)
    commands.close()


def test_touches_of_threads_that_wait_go_to_the_node_of_their_group(cluster: Cluster, store: RedisStore) -> None:
    """Those of one node share a pipeline, those of another have theirs; no node is asked for what it does not hold."""
    touches = []
    for node in cluster.masters():
        key = group_on(cluster, node)
        head = committed(store, key=key).head
        read = store.load(key)
        touches.append(Touch(key=key, revision=head.revision, commit_id=head.commit_id, identity=read.identity))
        node.call("CONFIG", "RESETSTAT")
    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(lambda number: store.touch(touches[number % len(touches)]).current, range(300)))
    for node in cluster.masters():
        assert b"errorstat_MOVED" not in node.call("INFO", "errorstats")


# -- one node that is slow or silent


@pytest.mark.alone
def test_d16_a_slow_node_does_not_hold_up_groups_of_other_nodes(cluster: Cluster, store: RedisStore) -> None:
    """Commits of X take half a second each, with more of them than X's node may have connections."""
    slow = cluster.masters()[0]
    x, y = group_on(cluster, slow), group_on(cluster, cluster.masters()[1])
    for key in (x, y):
        committed(store, key=key)
    with tapped(cluster, slow, timeout_ms=2000) as (tap, through):
        through.load(x)
        through.load(y)
        tap.delay(0.5)
        done = Signal()

        def crowd(_: int) -> int:
            served = 0
            while not done.is_set():
                try:
                    through.load(x)
                except StoreUnavailable:
                    continue
                served += 1
            return served

        with ThreadPoolExecutor(24) as pool:
            crowds = [pool.submit(crowd, number) for number in range(24)]
            took: list[float] = []
            try:
                time.sleep(0.2)
                while len(took) < 200:
                    begun = time.monotonic()
                    committed(through, key=y)
                    took.append(time.monotonic() - begun)
            finally:
                done.set()
            assert sum(future.result() for future in crowds) > 0
    assert sorted(took)[int(len(took) * 0.9)] < 0.3, "not even one of X's round trips"


def test_f5_a_silent_node_costs_its_groups_a_bound_and_others_nothing(cluster: Cluster, store: RedisStore) -> None:
    silent = cluster.masters()[0]
    x, y = group_on(cluster, silent), group_on(cluster, cluster.masters()[1])
    for key in (x, y):
        committed(store, key=key)
    before = _clients(silent)
    with tapped(cluster, silent) as (tap, through):
        through.load(x)
        through.load(y)

        def is_bounded(step: Callable[[], object]) -> float:
            begun = time.monotonic()
            with pytest.raises(StoreUnavailable):
                step()
            return time.monotonic() - begun

        for outage in (tap.blackhole, tap.cut):
            outage()
            with ThreadPoolExecutor(32) as pool:
                took = list(pool.map(lambda _: is_bounded(lambda: through.load(x)), range(64)))
            assert max(took) < 2 * TIMEOUT_MS / 1000 + SLACK_S, "waiting for a connection and for an answer, each bounded"
            begun = time.monotonic()
            through.load(y)
            assert time.monotonic() - begun < TIMEOUT_MS / 1000
            tap.pass_through()
            assert through.load(x).head.revision == 1, "the first call after the outage works"
    wait_until(lambda: _clients(silent) <= before + 2, what="connections are back to normal")


def _clients(node: RedisServer) -> int:
    told: bytes = node.call("CLIENT", "LIST", "TYPE", "NORMAL")
    return len(told.splitlines())


def test_f5_names_that_do_not_resolve_and_ports_that_refuse(cluster: Cluster) -> None:
    nowhere = (Address("no-such-host.invalid", 6379), Address(HOST, 1))
    store = cluster.store(timeout_ms=TIMEOUT_MS, nodes=nowhere)
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"cannot connect to Redis at no-such-host\.invalid:6379") as caught:
        store.load(KEY)
    assert "cannot connect to Redis at 127.0.0.1:1:" in str(caught.value), "every node is named with its reason"
    assert not isinstance(caught.value, OutcomeUnknown)
    assert time.monotonic() - begun < TIMEOUT_MS / 1000 + SLACK_S
    store.close()
    found = cluster.store(nodes=(*nowhere, Address(HOST, cluster.nodes[0].port)))
    assert found.load(KEY).head.revision == 0, "one seed that answers is enough"
    found.close()


def test_f6_replies_never_cross_between_nodes_and_redirections(cluster: Cluster) -> None:
    """Members of many groups, each with its own deadline, asked for by many threads over lines that stall."""
    direct = cluster.store()
    groups = [GroupKey("orders", f"group-{number}") for number in range(40)]
    for number, key in enumerate(groups):
        committed(direct, key=key, leases=LeaseChanges(ttl_ms=1, renew=("m",)))
        cluster.call(keys_of(key).leases, "ZADD", keys_of(key).leases, 1_000_000 + number, "m")
    done = Signal()
    with Tap(cluster.masters()[0].port) as one, Tap(cluster.masters()[1].port) as two:
        reached = {
            Address(HOST, node.port): Address(HOST, tap.port) for node, tap in zip(cluster.masters(), (one, two), strict=False)
        }
        store = cluster.store(timeout_ms=60, max_connections=6, reached=reached)

        def stall() -> None:
            while not done.wait(0.02):
                for tap in (one, two):
                    tap.delay(0.0 if time.monotonic() % 0.3 < 0.15 else 0.05)

        def ask(thread: int) -> tuple[int, int, int]:
            right = wrong = late = 0
            end = time.monotonic() + 3
            while time.monotonic() < end:
                number = (thread * 7 + right + late) % len(groups)
                try:
                    deadline, _ = store.lease(groups[number], "m")
                except StoreError:
                    late += 1
                else:
                    right, wrong = right + (deadline == 1_000_000 + number), wrong + (deadline != 1_000_000 + number)
            return right, wrong, late

        staller = Thread(target=stall)
        staller.start()
        try:
            with ThreadPoolExecutor(16) as pool:
                right, wrong, late = (sum(column) for column in zip(*pool.map(ask, range(16)), strict=True))
        finally:
            done.set()
            staller.join()
        store.close()
    assert wrong == 0
    assert right > 100
    assert late > 5
    direct.close()


# -- what a managed cluster refuses


@pytest.mark.parametrize("allowed", ["slots", "shards"])
def test_a_cluster_that_allows_one_sub_command_is_enough(cluster: Cluster, allowed: str) -> None:
    rules = (
        "on", ">secret", "~*", "&*", "+@all", "-config", "-memory", "-cluster", f"+cluster|{allowed}", "-role", "-debug",
    )  # fmt: skip
    for node in cluster.nodes:
        node.call("ACL", "SETUSER", f"only-{allowed}", *rules)
    store = store_of(cluster.settings(username=f"only-{allowed}", password="secret"))
    committed(store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",)))
    answer = store.commit(commit_on(store.load(KEY), guards=LeaseGuards(none_running=True)))
    assert isinstance(answer, Conflict)
    assert len(ShardStreams(store._commands).provision("orders", range(30), {"g": "0"}).keys) == 30
    concerns = worries(store, 15_000)
    assert {(concern.name, concern.is_unknown) for concern in concerns} == {("config", True), ("min-replicas", False)}
    assert "CONFIG GET is refused" in str(concerns[0])
    store.close()


def test_f8_what_is_unsafe_about_a_cluster_is_told(own_cluster: Cluster) -> None:
    store = own_cluster.store()
    found = {concern.name for concern in worries(store, 15_000)}
    assert found == {"min-replicas"}
    for node in own_cluster.nodes:
        node.call("CONFIG", "SET", "min-replicas-to-write", 1, "min-replicas-max-lag", 5)
    assert worries(store, 15_000) == []
    assert {concern.name for concern in worries(store, 1_900)} == {"min-replicas", "node-timeout"}
    own_cluster.masters()[1].call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    (concern,) = worries(store, 15_000)
    assert "maxmemory-policy allkeys-lru" in str(concern)
    store.close()


def test_a_server_that_is_no_cluster_says_so(single: RedisServer) -> None:
    seeds = ClusterSettings(nodes=(Address(HOST, single.port),))
    store = store_of(RedisSettings(cluster=seeds, timeout_ms=500))
    with pytest.raises(StoreUnavailable, match="cluster support disabled"):
        store.load(KEY)
    store.close()


def test_a_cluster_node_taken_for_a_single_server_says_so(cluster: Cluster) -> None:
    for node in cluster.masters():
        store = RedisStore(node.commands())
        if cluster.master_of(Keys("test:coord").aggregate(KEY).metadata) is node:
            store.load(KEY)
        else:
            with pytest.raises(StoreUnavailable, match=r"MOVED.*name its nodes in redis\.cluster\.nodes"):
                store.load(KEY)
        store.close()
