"""What is in the log stays readable for ever: golden entries, unknown types, old versions, canonical bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coord.events import catalog, chain, codec, upcast
from coord.events.envelope import Actor, Cause, Entry

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*.json"))
CAUSE = Cause(command_id="c-1", actor=Actor("admin", ("WRITE",)), request_id="q-1", coordinator_id="one")


def entry_of(body: bytes) -> Entry:
    return Entry(revision=7, index=2, body=body, chain=chain.link(chain.GENESIS, body))


def body_of(**changes: object) -> bytes:
    body: dict[str, object] = {
        "type": "MemberPruned", "v": 1, "at": 5, "commandId": "c", "actor": {"principal": "ticker", "roles": []},
        "requestId": None, "coordinatorId": "one", "data": {"memberId": "a"}, "prev": chain.GENESIS,
    }  # fmt: skip
    return json.dumps(body | changes).encode()


@pytest.mark.parametrize("name", codec.NAMES)
def test_every_version_of_every_event_has_a_golden_entry(name: str) -> None:
    """They are added, never edited: what a release has written, every later one reads."""
    for version in range(1, codec.version_of(codec.NAMES[name]) + 1):
        assert (GOLDEN / f"{name}.v{version}.json").is_file()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_entry_is_read(path: Path) -> None:
    name, _, version = path.stem.rpartition(".v")
    body = path.read_bytes().rstrip(b"\n")
    envelope = codec.decode(entry_of(body))
    assert type(envelope.event) is codec.NAMES[name]
    assert envelope.cause == CAUSE
    if int(version) == codec.version_of(codec.NAMES[name]):
        assert codec.encode(envelope.event, at=envelope.at, cause=envelope.cause, prev=envelope.prev) == body


def test_the_catalogue_is_complete() -> None:
    kinds = {kind for kind in vars(catalog).values() if isinstance(kind, type) and issubclass(kind, catalog.Fact)}
    parts = {catalog.Fact, catalog.AdoptedMember, catalog.FollowedMigration}
    assert kinds - parts == set(codec.NAMES.values())
    assert {codec.NAMES[name] for name in codec.NAME_OF.values()} == set(codec.NAMES.values())


def test_bytes_are_in_struct_order_without_spaces() -> None:
    event = catalog.ShardsFreed(member_id="ä", shards=(0, 10), reason="LEFT")
    assert codec.encode(event, at=12, cause=CAUSE, prev="00").decode() == (
        '{"type":"ShardsFreed","v":1,"at":12,"commandId":"c-1","actor":{"principal":"admin","roles":["WRITE"]},"requestId":"q-1",'
        '"coordinatorId":"one","data":{"memberId":"ä","shards":[0,10],"reason":"LEFT"},"prev":"00"}'
    )


def test_unknown_fields_are_ignored() -> None:
    entry = entry_of(body_of(data={"memberId": "a", "later": [1]}, more=True))
    assert codec.decode(entry).event == catalog.MemberPruned(member_id="a")


@pytest.mark.parametrize("changes", [{"type": "MemberPromoted"}, {"v": 2}, {"v": 0}, {"v": -1}])
def test_a_newer_releases_event_says_so(changes: dict[str, object]) -> None:
    with pytest.raises(codec.UnknownEvent, match="newer coord"):
        codec.decode(entry_of(body_of(**changes)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        body_of()[:-3],
        body_of(at="5"),
        body_of(at=5.5),
        body_of(v=True),
        body_of(data=None),
        body_of(data={}),
        body_of(data={"memberId": 3}),
        body_of(actor=None),
        b"[" * 100_000,
        body_of(data=[]),
        b"\xff\xfe",
    ],
)
def test_an_unreadable_entry_is_named(body: bytes) -> None:
    with pytest.raises(codec.MalformedEntry, match="7-2 is unreadable"):
        codec.decode(entry_of(body))


def test_the_chain_binds_each_entry_to_all_before_it() -> None:
    events = [catalog.MemberPruned(member_id=name) for name in "abc"]
    sealed = codec.seal(events, revision=4, first=1, at=9, cause=CAUSE, prev=chain.GENESIS)
    assert [entry.entry_id for entry in sealed] == ["4-1", "4-2", "4-3"]
    assert [codec.decode(entry).entry_id for entry in sealed] == ["4-1", "4-2", "4-3"]
    before = chain.GENESIS
    for entry in sealed:
        assert entry.chain == chain.link(before, entry.body)
        before = entry.chain
    assert chain.link(chain.GENESIS, sealed[1].body) != sealed[1].chain


def test_the_chain_value_is_a_sha256_over_raw_bytes() -> None:
    """Written down once, so that no later release can compute another."""
    assert chain.link(chain.GENESIS, b"body") == "818aaa5975b4a596522fed86d4fdf5da2edcb24507f3c07bee5849765a8a21d7"


def test_an_old_version_is_lifted_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later release knows version 3; what version 1 wrote goes through both steps."""

    def rename(data: dict[str, Any]) -> dict[str, Any]:
        return {"member": data["id"]}

    def rename_again(data: dict[str, Any]) -> dict[str, Any]:
        return {"memberId": data["member"]}

    monkeypatch.setattr(codec, "_LATER", {catalog.MemberPruned: 3})
    monkeypatch.setattr(upcast, "UPCASTS", {("MemberPruned", 1): rename, ("MemberPruned", 2): rename_again})
    assert codec.version_of(catalog.MemberPruned) == 3
    assert codec.decode(entry_of(body_of(data={"id": "a"}))).event == catalog.MemberPruned(member_id="a")
    assert codec.decode(entry_of(body_of(v=2, data={"member": "b"}))).event == catalog.MemberPruned(member_id="b")
    assert b'"v":3' in codec.encode(catalog.MemberPruned(member_id="c"), at=1, cause=CAUSE, prev="")
    monkeypatch.setattr(upcast, "UPCASTS", {})
    with pytest.raises(codec.MalformedEntry):
        codec.decode(entry_of(body_of(data={"id": "a"})))
