"""Keys that are not ours: what must never be configured, what the Kotlin coordinator knew, what comes later."""

from __future__ import annotations

import re
from typing import Final

from coord.config.keys import uniform

_ENVIRONMENT_WORD_LENGTH_MIN: Final = 10
_NEVER: Final[tuple[tuple[str, str], ...]] = (
    (
        "streamprefix streamprefixes consumergroup consumergroups group groups groupname streamname",
        "a streamPrefix or consumerGroup comes with each request and is never part of the configuration",
    ),
    (
        "shardcount shards shardcounts targetshardcount readshardcount numberofshards partitions partitioncount",
        (
            "a group's shard count lives in its metadata and is changed by the admin API, never by the configuration"
            " (defaults.initial-shard-count only serves create requests that name none)"
        ),
    ),
    (
        (
            "producer producers producercache producercachettl producerrouting producerroutingcache routingcache routingcachettl"
            " routingrefreshinterval cachettl cachepolicy"
        ),
        "how producers cache their routing is the producers' business, never part of the coordinator's configuration",
    ),
    (
        (
            "consumer consumers workercount consumerworkers consumerworkercount workersperconsumer consumerconcurrency"
            " concurrency maxconcurrency runtimemaxconcurrency"
        ),
        "worker counts of consumers are decided by the consumers and told by heartbeat, never by the coordinator's configuration",
    ),
    (
        "processingmarker processingmarkers processingmarkerkey processingmarkerttl markers markerttl",
        "processing markers belong to the consumers, never to the coordinator's configuration",
    ),
    (
        "cursor cursors readcursor readcursors streamcursor streamcursors streamreadcursor cursorkey lastid startoffset",
        "read cursors belong to the consumers, never to the coordinator's configuration",
    ),
    (
        "retry retries retrystate retrypolicy handlerretry handlerretries handlerretrystate maxretries deadletter dlq",
        "retry state belongs to the consumers' handlers, never to the coordinator's configuration",
    ),
)
_KOTLIN: Final = re.compile(r"(health(\.?.*)?|monitoring\.?[a-z]*parallelism|coordination\.?statemutex\.?ttl)")
KOTLIN_ADVICE: Final = "a key of the Kotlin coordinator that has no meaning here; it is ignored"


def reason_never(parts: tuple[str, ...]) -> str:
    """Return why the key with these parts may not be in a configuration file, or an empty text."""
    for words, reason in _NEVER:
        if uniform(parts[-1]) in words.split():
            return reason
    return ""


def reason_never_in_environment(form: str) -> str:
    """Return the same for an environment variable, given in uniform form without `COORDINATOR_`."""
    for words, reason in _NEVER:
        for word in words.split():
            if form == word or (len(word) >= _ENVIRONMENT_WORD_LENGTH_MIN and form.endswith(word)):
                return reason
    return ""


def is_kotlin_only(form: str) -> bool:
    """Say whether a key (uniform parts, joined by dots or by nothing) only means something to the Kotlin coordinator."""
    return _KOTLIN.fullmatch(form) is not None


UNBUILT: Final[tuple[str, ...]] = (
    "monitoring.metrics-auth",
    "monitoring.offset-cache-ttl-ms",
    "monitoring.per-member-metrics",
    "monitoring.per-shard-metrics",
    "events.retain",
    "events.retention-after-delete",
)
"""Keys whose feature this release lacks: any value but the default is warned of. When a feature is built, its line goes."""
