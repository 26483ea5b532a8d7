"""Takes over what a Kotlin coordinator left in this Redis: its streams with their groups, members, epochs and shards.

    plan    everything is read and judged before anything is written (`coord.runtime.adoptable`)
    aside   a copy of each key is kept beside it
    stream  begins in one commit, in the phase of its resharding, its groups registered
    group   begins in one step in the place of the hash that was read; until then a coordinator of ours answers RETRY
    after   older keys that ours do not replace are removed

A run that was ended goes on when it is made again: what is done is recognised by its log. Source: design page
`events-and-stores.md`, "Versions".
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from coord.core.adoption import HOW, START, AdoptGroup, AdoptStream, adopt_group, adopt_stream
from coord.core.commands import RegisterGroup
from coord.core.decision import Moment, Policy
from coord.events import codec
from coord.events.chain import GENESIS
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.projections.aggregate import encode
from coord.projections.group import Group
from coord.projections.stream import Stream
from coord.refusals import Refused
from coord.runtime.adoptable import ADOPTER, GroupPlan, NotAdopted, Plan, StreamPlan
from coord.runtime.executor import Executed, Executor, changes_of, guards_of
from coord.runtime.groups import topology_of
from coord.runtime.requests import Errand, Recorded
from coord.store.adoption import ASIDE, Adoption, Changed, Foreign
from coord.store.base import EMPTY_HEAD, Commit, Conflict

ATTEMPTS_MAX: Final = 5


def outlook(planned: StreamPlan, policy: Policy) -> Mapping[GroupKey, Group]:
    """Give the groups of a stream as they will begin, but for times and revisions."""
    moment = Moment(now=1, identity="", revision=1, policy=policy)
    stream = adopt_stream(_stream_command(planned, requested_by=""), moment, planned.key).after
    assert isinstance(stream, Stream)
    begun: dict[GroupKey, Group] = {}
    for group in planned.groups:
        after = adopt_group(_group_command(group, stream), moment, group.key).after
        assert isinstance(after, Group)
        begun[group.key] = after
    return begun


def adopt(planned: Plan, adoption: Adoption, executor: Executor, *, requested_by: str) -> list[AggregateKey]:
    """Carry a plan out; gives what was begun. Raises Changed, NotAdopted, and a store's errors."""
    _set_aside([each for stream in planned.streams for each in stream.keys], adoption)
    begun: list[AggregateKey] = []
    for stream in planned.streams:
        state = _begin_stream(stream, executor, requested_by)
        begun.append(stream.key)
        for group in stream.groups:
            if not group.is_done:
                _begin_group(group, state, adoption, executor)
            begun.append(group.key)
        for foreign in stream.keys:
            if foreign.key not in {adoption.metadata_key(group.key) for group in stream.groups}:
                adoption.drop(foreign)
    return begun


def _set_aside(keys: Sequence[Foreign], adoption: Adoption) -> None:
    """Keep a copy of every key, or of none."""
    done: list[Foreign] = []
    try:
        for foreign in keys:
            adoption.set_aside(foreign)
            done.append(foreign)
    except Changed:
        for foreign in done:
            adoption.drop(replace(foreign, key=foreign.key + ASIDE))
        raise


def _begin_stream(planned: StreamPlan, executor: Executor, requested_by: str) -> Stream:
    executor.store.index_add(planned.key)
    command = _stream_command(planned, requested_by=requested_by)
    for _ in range(ATTEMPTS_MAX):
        seen = executor.aggregates.load(planned.key)
        if isinstance(seen.state, Stream):
            return _registered(seen.state, command.groups, executor)
        moment = executor.moment(planned.key, seen)
        decided = adopt_stream(command, moment, planned.key)
        cause = executor.cause(Errand(actor=ADOPTER))
        recorded = [Recorded(event, cause) for event in decided.events]
        guards, leases = guards_of(decided.leases), changes_of(decided.leases, 0)
        outcome = executor.commit(planned.key, seen, recorded, decided.after, at=moment.now, guards=guards, leases=leases)
        if not isinstance(outcome, Conflict) and isinstance(outcome.state, Stream):
            return outcome.state
    raise NotAdopted(f"stream {planned.key} keeps changing: stop whoever works on it")


def _registered(stream: Stream, groups: Iterable[str], executor: Executor) -> Stream:
    """Register what is not registered yet on a stream that an earlier run began."""
    for name in groups:
        if name not in stream.groups:
            command = RegisterGroup(consumer_group=name, start_from=START, how=HOW, limit=len(stream.groups) + 1)
            done = executor.execute(StreamKey(stream.stream_prefix), command, Errand(actor=ADOPTER))
            if isinstance(done, Refused):
                raise NotAdopted(done.message)
            assert isinstance(done, Executed)
            assert isinstance(done.after, Stream)
            stream = done.after
    return stream


def _begin_group(group: GroupPlan, stream: Stream, adoption: Adoption, executor: Executor) -> None:
    now, identity = adoption.moment(group.key)
    command = _group_command(group, stream)
    moment = Moment(now=now, identity=identity, revision=1, policy=executor.policy)
    decided = adopt_group(command, moment, group.key)
    assert decided.after is not None
    entries = codec.seal(decided.events, revision=1, first=0, at=now, cause=executor.cause(Errand(actor=ADOPTER)), prev=GENESIS)
    commit = Commit(
        key=group.key,
        expected=EMPTY_HEAD,
        identity=identity,
        commit_id=uuid.uuid4().hex,
        entries=entries,
        aggregate=encode(decided.after),
        leases=changes_of(decided.leases, executor.policy.member_lease_ttl_ms),
    )
    adoption.adopt(commit, seen=group.foreign.text)


def _stream_command(planned: StreamPlan, *, requested_by: str) -> AdoptStream:
    return AdoptStream(
        shard_count=planned.shard_count,
        resharding=planned.resharding,
        groups=tuple(group.key.consumer_group for group in planned.groups),
        metadata_version_floor=planned.metadata_version,
        requested_by=requested_by,
    )


def _group_command(group: GroupPlan, stream: Stream) -> AdoptGroup:
    return AdoptGroup(
        source_key=group.foreign.key,
        registration=stream.groups[group.key.consumer_group].registered_revision,
        topology=topology_of(stream),
        group_epoch=group.told.group_epoch,
        assignment_epoch=group.told.assignment_epoch,
        metadata_version=group.told.metadata_version,
        members=group.told.members,
    )
