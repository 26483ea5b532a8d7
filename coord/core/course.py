"""The course of one decision: a private draft, and the events that have changed it so far.

A decision may serve several commands (heartbeats that wait for the same group are committed together): each event remembers
the command that was being served, and the target is computed once for all of them.
"""

from __future__ import annotations

from coord.core.decision import Moment, Policy
from coord.events.catalog import Event
from coord.names import GroupKey, StreamKey
from coord.projections.aggregate import evolve
from coord.projections.group import Group
from coord.projections.stream import Stream


class GroupCourse:
    """Decides on a group. The aggregate passed in is never changed: the first event makes a draft."""

    def __init__(self, state: Group, moment: Moment) -> None:
        self.group = state
        self.moment = moment
        self.events: list[Event] = []
        self.origins: list[int] = []
        """For each event the place, among the commands of this decision, of the one that caused it."""
        self.serving = 0
        self.target_reasons: list[str] = []
        self.renew_all = False
        self._key = GroupKey(state.stream_prefix, state.consumer_group)
        self._told: set[str] = set()

    @property
    def now(self) -> int:
        """The store's clock, ms."""
        return self.moment.now

    @property
    def policy(self) -> Policy:
        """Timings and limits."""
        return self.moment.policy

    def record(self, event: Event) -> None:
        """Add an event and apply it to the draft."""
        if not self.events:
            self.group = self.group.draft()
        self.events.append(event)
        self.origins.append(self.serving)
        evolved = evolve(self.group, event, key=self._key, revision=self.moment.revision, at=self.now)
        assert isinstance(evolved, Group)
        self.group = evolved

    def wants_target(self, reason: str) -> None:
        """Ask for a new target, since the set of ACTIVE members or the read set has changed; settling computes it, once."""
        self.target_reasons.append(reason)

    def epoch_for(self, member_id: str) -> int:
        """Give the epoch that this decision issues to a member: a fresh one, the same one if asked again.

        The event that carries it must be recorded before another epoch is asked for.
        """
        if member_id in self._told:
            return self.group.members[member_id].member_epoch
        self._told.add(member_id)
        return self.group.epoch + 1


class StreamCourse:
    """Decides on a stream that exists."""

    def __init__(self, state: Stream, moment: Moment) -> None:
        self.stream = state
        self.moment = moment
        self.events: list[Event] = []

    def record(self, event: Event) -> None:
        """Add an event and apply it; a stream is immutable, so no draft is needed."""
        self.events.append(event)
        evolved = evolve(
            self.stream, event, key=StreamKey(self.stream.stream_prefix), revision=self.moment.revision, at=self.moment.now
        )
        assert isinstance(evolved, Stream)
        self.stream = evolved
