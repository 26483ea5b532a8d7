"""The documented user of `coord store copy` and `coord adopt` needs no more; one that lacks a right leaves nothing half-done."""

from __future__ import annotations

import pytest

from coord.rediscommands import access
from tests.access.users import PASSWORD, Owned
from tests.cli.conftest import Run, run  # noqa: F401  a fixture
from tests.moving.kotlin import STABLE, seed
from tests.servers import private_redis


def test_the_documented_mover_is_refused_nothing(run: Run, owned: Owned) -> None:  # noqa: F811  the fixture
    url = f"redis://127.0.0.1:{owned.port}/0"
    for name in ("kotlin-0.3-stream-and-group", "kotlin-legacy-string-key"):
        seed(url, name)
    for options in (("--dry-run",), (), ("--undo",), ()):
        done = run("adopt", "--redis-url", owned.url_of("mover"), *options)
        assert done.exit_code == 0, done.output
    with private_redis() as other:
        there = run("store", "copy", "--from", owned.url_of("mover"), "--to", other.url)
        assert there.exit_code == 0, there.output
        owned.call("FLUSHALL")
        back = run("store", "copy", "--from", other.url, "--to", owned.url_of("mover"))
        assert back.exit_code == 0, back.output
    assert run("verify", "--redis-url", owned.url_of("mover")).exit_code == 0


@pytest.mark.parametrize("command", ["hset", "zadd", "xadd", "del", "copy"])
def test_an_adoption_that_may_not_write_all_leaves_the_group_as_it_was(run: Run, owned: Owned, command: str) -> None:  # noqa: F811  the fixture
    """The right that is missing is named."""
    url = f"redis://127.0.0.1:{owned.port}/0"
    seed(url, "kotlin-0.1-stable")
    before = sorted(owned.call("HGETALL", STABLE))
    own, index = access.mover().parts
    left = access.Part(own.pattern, tuple(each for each in own.commands if each != command))
    owned.call("ACL", "SETUSER", "mover", "reset", "on", f">{PASSWORD}", *access.Access((left, index)).words())
    refused = run("adopt", "--redis-url", owned.url_of("mover"))
    assert refused.exit_code == 3
    assert command.upper() in refused.stderr.upper()
    assert sorted(owned.call("HGETALL", STABLE)) == before
    assert owned.call("EXISTS", STABLE.replace("metadata", "events")) == 0
