"""`coord streams`, `coord groups`, `coord migrations` against a real coordinator."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from coord.cli.context import Api, RequestRefused, os_user, reach
from coord.client.http import CoordinatorHttp
from coord.config.schema import DEFAULT_PASSWORD
from coord.wire import Capacity, HeartbeatRequest, HeartbeatResponse, Shard
from tests.cli.conftest import Run, Served
from tests.servers import free_port, wait_until

WHY = ("--reason", "a test")


@pytest.fixture
def member(served: Served) -> Iterator[Member]:
    """A member that heartbeats when told to."""
    http = CoordinatorHttp(served.url)
    yield Member(http)
    http.close()


class Member:
    """Speaks the protocol by hand."""

    def __init__(self, http: CoordinatorHttp) -> None:
        self.http = http
        self.epoch = self.metadata = 0

    def heartbeat(self, stream: str, group: str, *, member_id: str = "m-1", owned: tuple[int, ...] = ()) -> HeartbeatResponse:
        """Send one heartbeat under the last epoch that was told."""
        body = HeartbeatRequest(
            protocol_version=1,
            request_id=uuid.uuid4().hex,
            member_id=member_id,
            member_epoch=self.epoch,
            metadata_version=self.metadata,
            runtime_consumer_capacity=Capacity(runtime_max_concurrency=2, available_concurrency=2),
            owned_shards=tuple(Shard(shard_index=index) for index in owned),
        )
        answer = self.http.heartbeat(stream, group, body)
        self.epoch, self.metadata = answer.member_epoch, answer.metadata_version
        return answer


def asked(run: Run, *arguments: str) -> Any:
    """Run a command that must work, as a script does; gives its JSON."""
    done = run(*arguments, "--output", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


# -- streams


def test_a_stream_is_created_described_listed_and_deleted(ask: Run, stream: str) -> None:
    """People see tables, scripts the API's own bodies."""
    done = ask("streams", "create", stream, "--shards", "3")
    assert (done.exit_code, done.stdout) == (0, f"{stream} is created with 3 shards\n")
    listed = asked(ask, "streams", "list")
    assert list(listed) == ["streams", "nextCursor"]
    mine = next(each for each in listed["streams"] if each["streamPrefix"] == stream)
    assert (mine["shardCount"], mine["state"], mine["consumerGroups"]) == (3, "STABLE", [])
    described = asked(ask, "streams", "describe", stream)
    assert list(described) == ["stream", "routing", "migrations"]
    assert described["stream"] == mine
    assert [each["streamKey"] for each in described["routing"]["shards"]] == [f"{stream}:{index}" for index in range(3)]
    table = ask("streams", "describe", stream)
    assert table.exit_code == 0
    assert f"{stream}:2" in table.stdout
    assert stream in ask("streams", "list").stdout
    done = ask("streams", "delete", stream, "--yes", *WHY)
    assert (done.exit_code, done.stderr) == (0, "")
    done = ask("streams", "describe", stream)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "STREAM_NOT_FOUND" in done.stderr


def test_a_refusal_is_exit_1_with_its_code(ask: Run, stream: str) -> None:
    """The error code and message on stderr, nothing on stdout, in both forms."""
    assert ask("streams", "create", stream).exit_code == 0
    for form in ((), ("--output", "json")):
        done = ask("streams", "create", stream, *form)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("Error: STREAM_PREFIX_ALREADY_EXISTS: ")


def test_json_stays_as_it_is(ask: Run, stream: str) -> None:
    """The fields of each result, in their order: scripts rely on them."""
    made = asked(ask, "streams", "create", stream, "--shards", "2")
    assert made == {"streamPrefix": stream, "shardCount": 2, "metadataVersion": made["metadataVersion"]}
    group = asked(ask, "groups", "create", stream, "billing", "--shards", "2")
    assert list(group) == [
        "streamPrefix",
        "consumerGroup",
        "state",
        "groupEpoch",
        "assignmentEpoch",
        "metadataVersion",
        "shardCount",
        "activeMigration",
        "targetAssignmentSummary",
        "currentAssignmentSummary",
        "readShardCount",
        "storeRevision",
        "activeMembers",
        "expiredMembers",
        "revokingShards",
    ]
    scaled = asked(ask, "streams", "scale", stream, "--shards", "2", *WHY)
    assert list(scaled) == ["streamPrefix", "targetShardCount", "affectedConsumerGroups", "migrations"]
    assert (scaled["migrations"][0]["reshardingId"], scaled["migrations"][0]["state"]) == ("noop", "DEPRECATED")
    assert list(asked(ask, "groups", "list")) == ["groups", "nextCursor"]
    assert list(asked(ask, "groups", "describe", stream, "billing")) == ["group", "members", "assignments", "migrations"]
    assert asked(ask, "migrations", "list", stream, "billing") == {"migrations": [], "activeReshardingId": None}


def test_who_and_why_are_recorded(ask: Run, stream: str) -> None:
    """`--requested-by` is the user of this system unless told otherwise."""
    ask("groups", "create", stream, "billing", "--shards", "1")
    first = asked(ask, "streams", "scale", stream, "--shards", "2", "--wait", "--reason", "more orders")
    assert (first["requestedBy"], first["reason"]) == (os_user(), "more orders")
    second = asked(ask, "streams", "scale", stream, "--shards", "3", "--wait", "--requested-by", "anna", *WHY)
    assert second["requestedBy"] == "anna"
    done = ask("streams", "scale", stream, "--shards", "4")
    assert done.exit_code == 2
    assert "--reason" in done.stderr


def test_scale_waits_for_the_end(ask: Run, stream: str) -> None:
    """The states go to stderr, the migration as it ended to stdout; nobody reads the group, so nothing must be revoked."""
    ask("groups", "create", stream, "billing", "--shards", "4")
    done = ask("streams", "scale", stream, "--shards", "2", "--wait", "--timeout", "20", "--output", "json", *WHY)
    assert done.exit_code == 0, done.output
    ended = json.loads(done.stdout)
    assert (ended["fromShardCount"], ended["toShardCount"], ended["state"]) == (4, 2, "DEPRECATED")
    assert "DEPRECATED 4 -> 2" in done.stderr
    assert ask("streams", "scale", stream, "--shards", "2", "--wait", *WHY).stdout == f"{stream} has 2 shards\n"


def test_scale_of_a_stream_without_groups_waits_too(ask: Run, stream: str) -> None:
    """Its answer names no migration; the stream's own list does."""
    ask("streams", "create", stream, "--shards", "1")
    ended = asked(ask, "streams", "scale", stream, "--shards", "3", "--wait", *WHY)
    assert (ended["toShardCount"], ended["state"]) == (3, "DEPRECATED")
    same = asked(ask, "streams", "scale", stream, "--shards", "3", "--wait", *WHY)
    assert same["targetShardCount" if "targetShardCount" in same else "toShardCount"] == 3


def test_a_blocked_drain_is_told_and_completed(ask: Run, stream: str, served: Served) -> None:
    """`--timeout` ends with 1 and names the blockers; `migrations complete --force` asks for the name, then goes past them."""
    ask("groups", "create", stream, "billing", "--shards", "2", "--start-from", "0")
    with redis.Redis.from_url(served.redis.url) as shards:
        shards.xadd(f"{stream}:1", {"number": "1"})
    done = ask("streams", "scale", stream, "--shards", "1", "--wait", "--timeout", "2", *WHY)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "Error: TIMEOUT: " in done.stderr
    assert f"{stream}:1" in done.stderr
    listed = ask("migrations", "list", stream, "billing")
    assert "WAITS FOR" in listed.stdout
    active = asked(ask, "migrations", "list", stream, "billing")["activeReshardingId"]
    assert asked(ask, "groups", "describe", stream, "billing")["group"]["activeMigration"]["state"] == "DRAINING"
    again = ask("streams", "scale", stream, "--shards", "3", *WHY)
    assert (again.exit_code, "ACTIVE_MIGRATION_EXISTS" in again.stderr) == (1, True)
    refused = ask("migrations", "rollback", stream, "billing", active, *WHY)
    assert (refused.exit_code, "ROLLBACK_NOT_ALLOWED" in refused.stderr) == (1, True)
    refused = ask("migrations", "complete", stream, "billing", active, *WHY)
    assert (refused.exit_code, "COMPLETION_NOT_ALLOWED" in refused.stderr) == (1, True)
    wrong = ask("migrations", "complete", stream, "billing", active, "--force", *WHY, text="no\n")
    assert wrong.exit_code == 1
    done = ask("migrations", "complete", stream, "billing", active, "--force", *WHY, text=f"{stream}\n")
    assert done.exit_code == 0, done.output
    wait_until(
        lambda: asked(ask, "migrations", "list", stream, "billing")["activeReshardingId"] is None, what="the resharding ends"
    )


def test_a_missing_migration(ask: Run, stream: str) -> None:
    """404 is a refusal."""
    ask("groups", "create", stream, "billing", "--shards", "1")
    done = ask("migrations", "rollback", stream, "billing", "reshard-none", *WHY)
    assert (done.exit_code, "MIGRATION_NOT_FOUND" in done.stderr) == (1, True)


def test_adopt_names_missing_keys(ask: Run, stream: str, served: Served) -> None:
    """Nothing is written unless every key is there."""
    with redis.Redis.from_url(served.redis.url) as shards:
        shards.xadd(f"{stream}:0", {"number": "1"})
        done = ask("streams", "adopt", stream, "--shards", "2", *WHY)
        assert done.exit_code == 1
        assert f"{stream}:1" in done.stderr
        shards.xadd(f"{stream}:1", {"number": "2"})
    done = ask("streams", "adopt", stream, "--shards", "2", *WHY)
    assert (done.exit_code, done.stdout) == (0, f"{stream} is adopted with 2 shards\n")


# -- groups


def test_describe_tells_what_each_shard_waits_for(ask: Run, stream: str, member: Member) -> None:
    """Granted and not yet reported; then read; then revoked for a second member."""
    ask("groups", "create", stream, "billing", "--shards", "2")
    member.heartbeat(stream, "billing")
    text = ask("groups", "describe", stream, "billing").stdout
    assert "m-1 to report that it reads it" in text
    member.heartbeat(stream, "billing", owned=(0, 1))
    text = ask("groups", "describe", stream, "billing").stdout
    assert "STABLE" in text
    assert "to report" not in text
    assert " s " in text, "the lease that is left"
    Member(member.http).heartbeat(stream, "billing", member_id="m-2")
    text = ask("groups", "describe", stream, "billing").stdout
    assert "m-1 to let it go" in text
    assert "RECONCILING" in text


def test_groups_are_listed_by_stream_and_state(ask: Run, stream: str, member: Member) -> None:
    """Filters leave the shape of the answer alone."""
    ask("groups", "create", stream, "billing", "--shards", "2")
    ask("groups", "create", stream, "audit")
    member.heartbeat(stream, "billing")

    def names(*filters: str) -> list[str]:
        return [each["consumerGroup"] for each in asked(ask, "groups", "list", "--stream", stream, *filters)["groups"]]

    assert names() == ["audit", "billing"]
    assert names("--state", "EMPTY") == ["audit"]
    assert "billing" in ask("groups", "list", "--stream", stream).stdout
    assert ask("groups", "list", "--stream", f"{stream}-none").stdout.startswith("no groups")


def test_deleting_a_group_asks_for_its_name(ask: Run, stream: str, member: Member) -> None:
    """A wrong name does nothing; nobody there to type is wrong usage; live members need --force."""
    ask("groups", "create", stream, "billing", "--shards", "1")
    member.heartbeat(stream, "billing")
    wrong = ask("groups", "delete", stream, "billing", *WHY, text="audit\n")
    assert (wrong.exit_code, wrong.stdout, "nothing was done" in wrong.stderr) == (1, "", True)
    nobody = ask("groups", "delete", stream, "billing", *WHY, text="")
    assert (nobody.exit_code, "--yes" in nobody.stderr) == (2, True)
    live = ask("groups", "delete", stream, "billing", *WHY, text="billing\n")
    assert (live.exit_code, "GROUP_HAS_ACTIVE_MEMBERS" in live.stderr) == (1, True)
    done = ask("groups", "delete", stream, "billing", "--force", "--destroy-consumer-groups", "--yes", *WHY)
    assert (done.exit_code, done.stdout) == (0, f"{stream}/billing is deleted\n")
    gone = ask("groups", "describe", stream, "billing")
    assert (gone.exit_code, "GROUP_NOT_FOUND" in gone.stderr) == (1, True)


# -- reaching a coordinator


@pytest.mark.parametrize("name", ["a/b", "{a}", ".", "..", " a", ""])
def test_an_illegal_name_is_wrong_usage(ask: Run, name: str) -> None:
    """It never reaches the coordinator, where a dot would be another path."""
    assert ask("streams", "describe", "--", name).exit_code == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--url", "ftp://127.0.0.1"),
        ("--url", "http://user:secret@127.0.0.1/coord/v1"),
        ("--username", "anna"),
        ("--url", "http://coordinator.example/coord/v1"),
    ],
)
def test_options_that_cannot_work_are_wrong_usage(run: Run, options: tuple[str, ...]) -> None:
    """The development password is sent to loopback only, and no password is shown."""
    done = run("streams", "list", *options)
    assert done.exit_code == 2
    assert "secret" not in done.stderr


def test_nobody_there_is_exit_3(run: Run) -> None:
    """The address is named, no traceback."""
    done = run("streams", "list", "--url", f"http://127.0.0.1:{free_port()}/coord/v1")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "no coordinator answers at" in done.stderr


def test_something_else_there_is_exit_3(run: Run, served: Served) -> None:
    """A server that knows nothing of the API is no coordinator; neither is Redis."""
    done = run("streams", "list", "--url", f"http://127.0.0.1:{served.redis.port}/coord/v1")
    assert done.exit_code == 3


def test_wrong_credentials_are_refused(ask: Run) -> None:
    """401 by password and by token."""
    for options in (("--username", "admin", "--password", "wrong"), ("--token", "nonsense")):
        done = ask("streams", "list", *options)
        assert done.exit_code == 1
        assert "UNAUTHORIZED" in done.stderr
        assert "wrong" not in done.stderr


def test_a_token_is_enough(ask: Run, served: Served) -> None:
    """Bearer, no login."""
    api = Api(served.url, username="admin", password=DEFAULT_PASSWORD)
    api.get("monitoring", "session")
    assert api._token is not None
    assert ask("streams", "list", "--token", api._token).exit_code == 0
    api.close()
    refused = reach(served.url, token="nonsense", username=None, password=None)
    with pytest.raises(RequestRefused, match="UNAUTHORIZED"):
        refused.get("monitoring", "streams")
    refused.close()


def test_no_colour_reaches_a_pipe(ask: Run) -> None:
    """Nor with --no-color anywhere in the line."""
    for arguments in (("streams", "list"), ("streams", "list", "--no-color"), ("--no-color", "streams", "list")):
        done = ask(*arguments)
        assert done.exit_code == 0
        assert "\x1b" not in done.output
