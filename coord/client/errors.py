"""What can go wrong for a client.

* CoordinatorError           a call to the coordinator failed
  - RetriableError           it gave no usable answer: unknown is not lost, ask again with back-off
  - FatalError               it refused for good: stop, tell the owner
* PublishError               one record was not published
  - NoShardsError            the stream is scaled to zero
  - RoutingExpiredError      no routing was fetched within the routing lease
  - ShardGoneError           the shard's key does not exist, and a fresh routing did not help
  - PublishUncertainError    Redis gave no answer: the record may or may not be there
"""

from __future__ import annotations


class CoordinatorError(Exception):
    """The coordinator did not do what was asked. `http_status` is what it answered, None where no answer is what went wrong."""

    def __init__(self, message: str, *, http_status: int | None) -> None:
        super().__init__(message)
        self.http_status = http_status


class RetriableError(CoordinatorError):
    """No usable answer. `kind` is a short constant for counting; `retry_after_ms` is what the server asked for, or None."""

    def __init__(self, kind: str, message: str, *, retry_after_ms: int | None = None, http_status: int | None = None) -> None:
        super().__init__(f"{kind}: {message}", http_status=http_status)
        self.kind = kind
        self.retry_after_ms = retry_after_ms


class FatalError(CoordinatorError):
    """A refusal that asking again does not change. `code` is the errorCode, the heartbeat status, or `HTTP_<status>`."""

    def __init__(self, code: str, message: str, *, http_status: int | None = None) -> None:
        super().__init__(f"{code}: {message}", http_status=http_status)
        self.code = code


class PublishError(Exception):
    """A record was not published; nothing of it is queued."""


class NoShardsError(PublishError):
    """The stream has no shards at present (scaled to zero)."""


class RoutingExpiredError(PublishError):
    """The routing is older than its lease allows: publishing could reach a shard that nobody reads any more."""


class ShardGoneError(PublishError):
    """Redis has no key for the shard, after one refresh of the routing and one more try."""


class PublishUncertainError(PublishError):
    """Redis failed while the record was on its way: publishing again may double it."""
