"""Settings and key names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord.names import AggregateKey, GroupKey, StreamKey
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.keys import KEY_PREFIX, Keys
from coord.rediscommands.settings import RedisSettings, RedisTls, from_url


def test_a_url_says_it_all() -> None:
    settings = from_url("redis://coord:p%40ss@redis.example:6400/3", timeout_ms=700, max_connections=5)
    assert settings == RedisSettings(
        host="redis.example", port=6400, db=3, username="coord", password="p@ss", timeout_ms=700, max_connections=5
    )
    assert "p@ss" not in repr(settings)
    assert settings.endpoint == "redis.example:6400"


def test_rediss_means_tls() -> None:
    assert from_url("rediss://redis.example").tls == RedisTls()
    own = RedisTls(ca_file="ca.pem")
    assert from_url("rediss://redis.example", tls=own).tls == own
    assert from_url("redis://redis.example").tls is None


@pytest.mark.parametrize("url", ["http://user:secret@host", "redis://user:secret@host:port", "redis://h?db=x&password=secret"])
def test_a_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValueError, match=r"redis\.url") as caught:
        from_url(url)
    assert "secret" not in str(caught.value)


def test_options_in_a_url_are_named() -> None:
    with pytest.raises(ValueError, match="socket_timeout"):
        from_url("redis://host?socket_timeout=5")


@pytest.mark.parametrize("name", ["port", "timeout_ms", "max_connections"])
def test_a_bound_of_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name.replace("_", "-")):
        RedisSettings(**{name: 0})  # type: ignore[arg-type]  # wrong on purpose


def test_an_unknown_identity_source_is_refused() -> None:
    with pytest.raises(ValueError, match=r"store\.identity must be auto or constant"):
        RedisCommands(RedisSettings(), identity_source="guess")


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b"])
def test_d11_a_key_prefix_with_braces_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="key-prefix"):
        Keys(prefix)


def test_keys_are_as_documented() -> None:
    keys = Keys()
    group = keys.aggregate(GroupKey("orders", "a:b%"))
    assert group.metadata == f"{KEY_PREFIX}:{{orders:a%3Ab%25}}:metadata"
    assert keys.aggregate(StreamKey("orders")).events == f"{KEY_PREFIX}:{{orders}}:stream:events"
    assert (keys.index, keys.loop, keys.requests) == (f"{KEY_PREFIX}:index", f"{KEY_PREFIX}:loop", f"{KEY_PREFIX}:requests")


_names = st.text(st.sampled_from("ab:%3A25"), min_size=1, max_size=6)
_aggregates: st.SearchStrategy[AggregateKey] = st.builds(GroupKey, _names, _names) | st.builds(StreamKey, _names)


@given(_aggregates, _aggregates)
def test_d11_two_aggregates_never_share_a_key(one: AggregateKey, other: AggregateKey) -> None:
    ours, theirs = Keys().aggregate(one), Keys().aggregate(other)
    shared = {getattr(ours, name) for name in ours.__slots__} & {getattr(theirs, name) for name in theirs.__slots__}
    assert bool(shared) == (one == other)
