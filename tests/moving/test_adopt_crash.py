"""Adoption that is ended between any two of its steps: made again it ends, undone it leaves what was there."""

from __future__ import annotations

from typing import Any

import pytest

from coord.moving import open_adoption
from coord.runtime.adoptable import plan
from coord.runtime.adopting import adopt
from coord.runtime.undoing import undo, undoing
from coord.runtime.verify import verify_all
from coord.store.adoption import Adoption
from coord.store.base import Commit, Committed, Conflict
from tests.moving.kotlin import seed
from tests.moving.lives import Life, Stored, stored

FIXTURES = ("kotlin-0.3-stream-and-group", "kotlin-legacy-string-key")
STEPS = 10
"""Three keys aside, two streams begun, two groups begun, two keys dropped; the last is not reached."""
WRITES = ("set_aside", "adopt", "drop", "put_back", "retire")


class Ended(BaseException):
    """As a kill: nothing after it runs."""


class Ending:
    """An adoption, or a store, that ends before the n-th write of all."""

    def __init__(self, real: Any, left: list[int]) -> None:
        self._real = real
        self._left = left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in WRITES:
            return found

        def step(*arguments: Any, **named: Any) -> Any:
            self._left[0] -= 1
            if self._left[0] < 0:
                raise Ended
            return found(*arguments, **named)

        return step


@pytest.fixture
def seeded(redis_url: str) -> Stored:
    for name in FIXTURES:
        seed(redis_url, name)
    return stored(redis_url, "*")


def run_until(life: Life, real: Adoption, step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Adopt, ended before that write; tells whether it came to its end before."""
    left = [step]
    store = life.services.store
    commit = store.commit

    def counted(wanted: Commit) -> Committed | Conflict:
        left[0] -= 1
        if left[0] < 0:
            raise Ended
        return commit(wanted)

    monkeypatch.setattr(store, "commit", counted)
    try:
        ending: Any = Ending(real, left)
        adopt(plan(ending, store), ending, life.services.executor, requested_by="test")
    except Ended:
        return False
    finally:
        monkeypatch.setattr(store, "commit", commit)
    return True


@pytest.mark.parametrize("step", range(STEPS))
def test_ended_anywhere_it_goes_on_or_back(redis_url: str, seeded: Stored, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: once it is made again, once it is undone; and an undo is ended anywhere too."""
    life = Life(redis_url)
    adoption = open_adoption(life.config)
    store = life.services.store
    ended = run_until(life, adoption, step, monkeypatch)
    assert ended == (step >= STEPS - 1), "the number of steps is another: see STEPS"
    undo(undoing(adoption, store), adoption, store, force=False, tick_ms=1)
    assert {key: value for key, value in stored(redis_url, "*").items() if not key.endswith(b":undone")} == seeded

    life.services.executor.aggregates.clear()
    run_until(life, adoption, step, monkeypatch)
    adopt(plan(adoption, store), adoption, life.services.executor, requested_by="test")
    assert plan(adoption, store).streams == []
    reports = list(verify_all(store))
    assert len(reports) == 4
    assert [each.findings for each in reports] == [[]] * 4

    left: Any = Ending(adoption, [step])
    try:
        undo(undoing(left, store), left, store, force=False, tick_ms=1)
    except Ended:
        undo(undoing(adoption, store), adoption, store, force=False, tick_ms=1)
    assert {key: value for key, value in stored(redis_url, "*").items() if not key.endswith(b":undone")} == seeded
    adoption.close()
    life.close()
