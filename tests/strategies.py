"""Hypothesis strategies: ids, shard sets, any event of the catalogue, any heartbeat a member could send."""

from __future__ import annotations

import types
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Raw, Struct

from coord.core.commands import Heartbeat
from coord.events.catalog import Event
from coord.events.codec import NAMES
from coord.names import SAFE_INTEGER_MAX

MEMBERS: Final = ("a", "b", "c", "d")
SHARDS_MAX: Final = 6

member_ids = st.sampled_from(MEMBERS)
shard_sets = st.frozensets(st.integers(0, SHARDS_MAX), max_size=SHARDS_MAX + 1)
sorted_shards = shard_sets.map(lambda shards: tuple(sorted(shards)))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type, as far as the catalogue uses types."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(of_type, arguments))
    if origin is tuple:
        if arguments[0] is int:
            return sorted_shards
        return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return structs(hint)
    known: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-SAFE_INTEGER_MAX, SAFE_INTEGER_MAX),
        str: texts,
        bool: st.booleans(),
        type(None): st.none(),
        Raw: st.sampled_from([b"{}", b'{"storeRevision":3,"name":"\xc3\xa4"}', b"[1,2,3]"]).map(Raw),
    }
    return known[hint]


def structs(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any instance of a struct."""
    hints = get_type_hints(kind)
    return st.fixed_dictionaries({name: of_type(hints[name]) for name in kind.__struct_fields__}).map(lambda given: kind(**given))


events: st.SearchStrategy[Event] = st.sampled_from(sorted(NAMES)).flatmap(lambda name: structs(NAMES[name]))


@st.composite
def heartbeats(draw: st.DrawFn, *, epochs: st.SearchStrategy[int], versions: st.SearchStrategy[int]) -> Heartbeat:
    """Any heartbeat: honest, stale, of the future, or nonsense."""
    member = draw(member_ids)
    owned, draining = draw(shard_sets), draw(shard_sets)
    return Heartbeat(
        path_member_id=member,
        member_id=member,
        member_name=None,
        request_id=draw(st.sampled_from(["q1", "q2", "q3", "q4", "q5"])),
        protocol_version=1,
        member_epoch=draw(epochs),
        metadata_version=draw(versions),
        runtime_max_concurrency=draw(st.sampled_from([1, 4])),
        owned=owned,
        draining=draining,
        revoked=draw(shard_sets) - draining,
    )
