"""One run of the bench: how long to measure, and the servers and groups that several lines share, made when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from coord.runtime.embedded import EmbeddedRedis
from ops.bench.members import Group
from ops.bench.progress import Progress
from ops.bench.servers import Engine, Heartbeats, Serving, serving

T = TypeVar("T")
SHARDS_PER_MEMBER: Final = 4
KEY_PREFIX: Final = "bench"
"""Of the servers that share the groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured. `seconds`: of one run of wrk; `repeats`: whose median counts; `floors`: runs of each floor."""

    quick: bool
    seconds: int
    repeats: int
    floors: int


FULL: Final = Effort(quick=False, seconds=5, repeats=5, floors=3)
QUICK: Final = Effort(quick=True, seconds=1, repeats=1, floors=1)


class Bench:
    """What lines measure with. `folder` is for files of the run and goes with it."""

    def __init__(self, effort: Effort, progress: Progress, folder: Path) -> None:
        self.effort = effort
        self.progress = progress
        self.folder = folder
        self._stack = ExitStack()
        self._made: dict[str, Any] = {}
        self._numbers = count(1)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Make something at the first call, give the same later."""
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]
        return made

    def forget(self, name: str) -> None:
        """Have it made anew when it is asked for again: it is no longer as it was."""
        self._made.pop(name, None)

    def open(self, context: AbstractContextManager[T]) -> T:
        """Enter a context that ends with the run."""
        return self._stack.enter_context(context)

    def fresh_folder(self) -> Path:
        """Make a folder of its own."""
        folder = self.folder / f"{next(self._numbers):03}"
        folder.mkdir()
        return folder

    def redis(self) -> EmbeddedRedis:
        """Give the Redis of this run, which keeps nothing on disk."""
        return self.once("redis", lambda: self.open(EmbeddedRedis.start()))

    def server(self, engine: Engine = "gunicorn", heartbeats: Heartbeats = "coord") -> Serving:
        """Give a server of this engine, or of a stand-in behind it; all of them share the groups."""
        return self.once(
            f"server {engine} {heartbeats}",
            lambda: self.open(
                serving(
                    self.fresh_folder(),
                    self.redis().url,
                    engine=engine,
                    heartbeats=heartbeats,
                    key_prefix=KEY_PREFIX if heartbeats == "coord" else f"{KEY_PREFIX}-{heartbeats}",
                )
            ),
        )

    def group(self, members: int) -> Group:
        """Give a group of so many members that has settled."""
        return self.once(_group_name(members), lambda: self.settled(members))

    def forget_group(self, members: int) -> None:
        """Have the group of this size made anew when it is asked for again."""
        self.forget(_group_name(members))

    def new_group(self, members: int) -> Group:
        """Create a group whose members have not joined yet."""
        number = next(self._numbers)
        group = Group(f"stream-{number}", "group", [f"member-{place:05}" for place in range(members)])
        group.create(self.server(), shards=members * SHARDS_PER_MEMBER)
        return group

    def settled(self, members: int) -> Group:
        """Make a group of so many members and let it settle."""
        group = self.new_group(members)
        group.settle(self.server(), self.progress.step)
        return group

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()


def _group_name(members: int) -> str:
    return f"group of {members}"
