"""Every event, whatever is in it, comes back from the log as it went in, and is chained to what went before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coord.events import chain, codec
from coord.events.catalog import Event
from coord.events.envelope import Actor, Cause, Entry
from tests.strategies import events, structs, texts

causes = st.builds(
    Cause,
    command_id=texts,
    actor=st.builds(Actor, texts, st.lists(texts, max_size=2).map(tuple)),
    request_id=st.none() | texts,
    coordinator_id=texts,
)


@given(st.lists(events, min_size=1, max_size=4), causes, st.integers(1, 10**6), st.integers(0, 10**15))
def test_what_is_sealed_is_read_back(facts: list[Event], cause: Cause, revision: int, at: int) -> None:
    sealed = codec.seal(facts, revision=revision, first=3, at=at, cause=cause, prev=chain.GENESIS)
    read = [codec.decode(entry) for entry in sealed]
    assert [envelope.event for envelope in read] == facts
    assert {(envelope.cause, envelope.at, envelope.revision) for envelope in read} == {(cause, at, revision)}
    assert [envelope.index for envelope in read] == list(range(3, 3 + len(facts)))
    assert read[0].prev == chain.GENESIS
    assert [envelope.prev for envelope in read[1:]] == [envelope.chain for envelope in read[:-1]]


@pytest.mark.parametrize("name", codec.NAMES)
@settings(max_examples=15)
@given(data=st.data(), cause=causes)
def test_the_same_fact_has_the_same_bytes(name: str, data: st.DataObject, cause: Cause) -> None:
    """Every type of event, with anything in its fields, read back and written again."""
    fact = data.draw(structs(codec.NAMES[name]))
    body = codec.encode(fact, at=1, cause=cause, prev=chain.GENESIS)
    entry = Entry(revision=1, index=0, body=body, chain=chain.link(chain.GENESIS, body))
    read = codec.decode(entry)
    assert read.event == fact
    assert codec.encode(read.event, at=1, cause=cause, prev=chain.GENESIS) == body
