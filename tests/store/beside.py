"""What is promised of windows and answers, the ports beside the store; every implementation runs it.

Counts are exact, a swap is one step, and each stream and group has its own.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from coord.names import AggregateKey, GroupKey, StreamKey
from coord.store.answers import ANSWERS_MAX, Answers
from coord.store.windows import Windows

GROUP = GroupKey("orders", "g")
STREAM = StreamKey("orders")
HOUR_MS = 3_600_000


@dataclass
class Place:
    """One kind of store, empty."""

    windows: Windows
    answers: Answers


class BesideContract:
    """A subclass gives the fixture `place`."""

    def test_l3_a_window_takes_so_many_and_no_more(self, place: Place) -> None:
        waits = [place.windows.take(GROUP, "ada", limit=3, window_ms=HOUR_MS) for _ in range(5)]
        assert waits[:3] == [0, 0, 0]
        assert all(0 < wait <= HOUR_MS for wait in waits[3:])

    @pytest.mark.parametrize(
        ("key", "principal"),
        [
            (GROUP, "bob"),
            (STREAM, "ada"),
            (GroupKey("orders", "h"), "ada"),
            (GroupKey("a:b", "g"), "ada"),
            (StreamKey("x"), "ada"),
        ],
    )
    def test_each_principal_has_a_count_of_its_own_for_each_stream_and_group(
        self, place: Place, key: AggregateKey, principal: str
    ) -> None:
        assert place.windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) == 0
        assert place.windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) > 0
        assert place.windows.take(key, principal, limit=1, window_ms=HOUR_MS) == 0

    def test_l3_it_is_exact_however_many_count_at_once(self, place: Place) -> None:
        gate = threading.Barrier(16)

        def take(_: int) -> list[int]:
            gate.wait(30)
            return [place.windows.take(GROUP, "ada", limit=100, window_ms=HOUR_MS) for _ in range(20)]

        with ThreadPoolExecutor(16) as pool:
            waits = [wait for each in pool.map(take, range(16)) for wait in each]
        assert waits.count(0) == 100

    def test_a_swap_puts_only_in_the_place_of_what_was_seen(self, place: Place) -> None:
        answers = place.answers
        assert answers.swap(GROUP, "k", seen=None, put=None).there is None
        assert answers.swap(GROUP, "k", seen=None, put=b"\x00one\xff").done
        refused = answers.swap(GROUP, "k", seen=None, put=b"two")
        assert (refused.done, refused.there) == (False, b"\x00one\xff")
        assert not answers.swap(GROUP, "k", seen=b"other", put=None).done
        swapped = answers.swap(GROUP, "k", seen=b"\x00one\xff", put=b"two")
        assert (swapped.done, swapped.there) == (True, b"\x00one\xff")
        assert swapped.now > 0
        assert answers.swap(GROUP, "k", seen=b"two", put=None).done
        assert answers.swap(GROUP, "k", seen=b"?", put=None).there is None

    def test_of_many_that_put_at_once_one_does(self, place: Place) -> None:
        gate = threading.Barrier(16)

        def put(index: int) -> bool:
            gate.wait(30)
            return place.answers.swap(GROUP, "k", seen=None, put=b"%d" % index).done

        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(put, range(16))).count(True) == 1

    def test_the_latest_are_kept_for_each_stream_and_group(self, place: Place) -> None:
        for index in range(ANSWERS_MAX + 5):
            assert place.answers.swap(GROUP, f"k{index}", seen=None, put=b"%d" % index).done
        there = [
            name
            for index in range(ANSWERS_MAX + 5)
            if (place.answers.swap(GROUP, name := f"k{index}", seen=b"?", put=None)).there
        ]
        assert len(there) == ANSWERS_MAX  # which of them went is not judged: several were put in one ms
        assert place.answers.swap(STREAM, "k30", seen=None, put=None).there is None

    def test_alone_drops_all_the_others_of_that_stream_only(self, place: Place) -> None:
        for key in (STREAM, GROUP):
            for name in ("a", "b"):
                assert place.answers.swap(key, name, seen=None, put=b"x").done
        assert not place.answers.swap(STREAM, "b", seen=b"other", put=b"y", alone=True).done
        assert place.answers.swap(STREAM, "a", seen=None, put=None).there == b"x"
        assert place.answers.swap(STREAM, "b", seen=b"x", put=b"y", alone=True).done
        assert place.answers.swap(STREAM, "a", seen=b"?", put=None).there is None
        assert place.answers.swap(STREAM, "b", seen=b"?", put=None).there == b"y"
        assert place.answers.swap(GROUP, "a", seen=b"?", put=None).there == b"x"
