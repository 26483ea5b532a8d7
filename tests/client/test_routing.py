"""H12: one routing function, held against published vectors and against a slow twin."""

from __future__ import annotations

import json
from collections import Counter

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from coord.client.routing import redis_slot, shard_for
from tests.client.routing_reference import COUNTS, VECTORS, murmur3, shard_of, vectors


@pytest.fixture(scope="module")
def published() -> tuple[list[str], dict[int, list[int]]]:
    document = json.loads(VECTORS.read_text(encoding="utf-8"))
    keys = [k if isinstance(k, str) else k[0] * k[1] for k in document["keys"]]
    return keys, {int(n): shards for n, shards in document["expected"].items()}


@pytest.mark.parametrize("count", COUNTS)
def test_h12_every_key_of_the_vectors_goes_where_they_say(published: tuple[list[str], dict[int, list[int]]], count: int) -> None:
    keys, expected = published
    assert len(keys) == 5_000
    assert [shard_for(k, count) for k in keys] == expected[count]
    assert all(0 <= shard < count for shard in expected[count])


def test_h12_the_vectors_hold_the_cases_that_clients_got_wrong(published: tuple[list[str], dict[int, list[int]]]) -> None:
    keys, _ = published
    hashes = [mmh3.hash(k.encode(), 0, signed=False) for k in keys]
    assert "" in keys
    assert max(len(k.encode()) for k in keys) >= 65_536
    assert sum(h >= 2**31 for h in hashes) > 200
    for count in (3, 7, 10):
        assert sum(h >= 2**32 - 2**32 % count for h in hashes) >= 2**32 % count, "keys that are hashed again"


def test_h12_the_vectors_are_what_the_slow_reference_says() -> None:
    assert json.loads(VECTORS.read_text(encoding="utf-8")) == vectors()


@pytest.mark.parametrize("count", [3, 7, 10])
def test_h12_keys_spread_within_five_percent(count: int) -> None:
    spread = Counter(shard_for(f"order-{i}", count) for i in range(100_000))
    assert all(abs(n - 100_000 / count) < 0.05 * 100_000 / count for n in spread.values())


@given(key=st.text(max_size=40), count=st.one_of(st.integers(1, 20_000), st.integers(2**30, 2**32)))
def test_h12_equal_to_the_slow_twin_also_where_most_hashes_are_drawn_again(key: str, count: int) -> None:
    assert shard_for(key, count) == shard_of(key, count)


@given(data=st.binary(max_size=40), seed=st.integers(0, 2**32 - 1))
def test_the_reference_is_murmur3(data: bytes, seed: int) -> None:
    assert murmur3(data, seed) == mmh3.hash(data, seed, signed=False)


@given(key=st.text(alphabet="{}abö:", max_size=12))
def test_slots_are_those_of_redis_cluster(key: str) -> None:
    assert redis_slot(key) == key_slot(key.encode())


def test_slots_known_from_the_redis_documentation() -> None:
    assert [redis_slot(k) for k in ("foo", "123456789", "{foo}:7")] == [12182, 0x31C3, 12182]


@pytest.mark.parametrize("count", [0, -1])
def test_no_shards_is_an_error(count: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        shard_for("k", count)
