"""Every key that the coordinator uses, in one place. All keys of an aggregate share a hash tag, hence a Cluster slot.

`{tag}` = `{streamPrefix:consumerGroup}`, `%` and `:` of the consumer group percent-encoded, so that the last `:` divides
and (`a:b`, `c`) and (`a`, `b:c`) share no key. A stream's own keys carry `{streamPrefix}` and `:stream:`.

| key, after the prefix      | type   | holds                                              | lost if deleted         |
|----------------------------|--------|----------------------------------------------------|-------------------------|
| `:{tag}:metadata`          | hash   | the fold of the log, and its guard                 | nothing: `coord repair` |
| `:{tag}:events`            | stream | the log, entry id `<revision>-<n>`                 | the history             |
| `:{tag}:leases`            | zset   | member -> deadline, ms; two entries begin with NUL | a lease each            |
| `:{tag}:reports`           | hash   | member -> its latest report                        | a view, for a heartbeat |
| `:{tag}:mutex`             | string | the token of who holds the aggregate's mutex       | nothing                 |
| `:{tag}:windows`           | hash   | principal -> mutations in the present window       | a minute's counts       |
| `:{tag}:answers`           | hash   | the latest keyed mutations and their answers       | replays                 |
| `:{tag}:answered`          | zset   | the names in it -> when, ms                        | their order             |
| `:{tag}:admin:audit`       | list   | the latest audit entries, with `audit.sink: redis` | nothing: a copy         |
| `:{streamPrefix}:stream:…` |        | the same keys of the stream aggregate              | as above                |
| `:index`                   | set    | the prefixes of all streams                        | nothing: the tick's job |
| `:loop`                    | hash   | `ticker`, `tickedAt`: who ticks, and when it did   | a turn                  |
| `:requests`                | stream | audit entries of no aggregate, bounded             | those entries           |

Shard keys have no prefix: `<streamPrefix>:<shardIndex>` (see `coord.streams.shards`).
"""

from __future__ import annotations

from dataclasses import dataclass

from coord.names import AggregateKey, GroupKey, StreamKey

KEY_PREFIX = "redis-stream:coord"


@dataclass(frozen=True, slots=True)
class AggregateKeys:
    """The keys of one aggregate. `leases` and `reports` are used for groups only."""

    metadata: str
    events: str
    leases: str
    reports: str
    mutex: str


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names under a prefix."""

    prefix: str = KEY_PREFIX

    def __post_init__(self) -> None:
        """Refuse a prefix whose braces would take the hash tag's place."""
        if not self.prefix or not {"{", "}"}.isdisjoint(self.prefix):
            message = "store.key-prefix must be a non-empty text without braces"
            raise ValueError(message)

    def aggregate(self, key: AggregateKey) -> AggregateKeys:
        """Give the keys of an aggregate."""
        base = self._base(key)
        return AggregateKeys(*(base + name for name in ("metadata", "events", "leases", "reports", "mutex")))

    def metadata(self, key: AggregateKey) -> str:
        """Give the key of an aggregate's metadata alone."""
        return self._base(key) + "metadata"

    def watched(self, key: GroupKey) -> tuple[str, str]:
        """Give the keys of a group's metadata and leases: what is looked at in thousands of groups a second."""
        base = self._base(key)
        return base + "metadata", base + "leases"

    def windows(self, key: AggregateKey) -> str:
        """Give the hash that counts an aggregate's mutations."""
        return f"{self._base(key)}windows"

    def answers(self, key: AggregateKey) -> tuple[str, str]:
        """Give the hash of an aggregate's keyed mutations, and the zset of their order."""
        return f"{self._base(key)}answers", f"{self._base(key)}answered"

    def admin_audit(self, key: AggregateKey) -> str:
        """Give the list of an aggregate's latest audit entries."""
        return f"{self._base(key)}admin:audit"

    def _base(self, key: AggregateKey) -> str:
        return f"{self.prefix}:{{{tag(key)}}}:{'' if isinstance(key, GroupKey) else 'stream:'}"

    def parse(self, key: str) -> tuple[AggregateKey, str] | None:
        """Give the aggregate that a key belongs to, and which of its keys it is (`metadata`, …); None for any other key."""
        begin = f"{self.prefix}:{{"
        named, closed, rest = key.removeprefix(begin).partition("}:")
        if not key.startswith(begin) or not closed:
            return None
        if rest.startswith("stream:"):
            return (StreamKey(named), rest.removeprefix("stream:")) if named else None
        prefix, _, group = named.rpartition(":")
        group = group.replace("%3A", ":").replace("%25", "%")
        return (GroupKey(prefix, group), rest) if prefix and group else None

    @property
    def index(self) -> str:
        """The set of all streams' prefixes."""
        return f"{self.prefix}:index"

    @property
    def loop(self) -> str:
        """The hash of who ticks."""
        return f"{self.prefix}:loop"

    @property
    def requests(self) -> str:
        """The audit entries that belong to no aggregate."""
        return f"{self.prefix}:requests"


def tag(key: AggregateKey) -> str:
    """Give the hash tag of an aggregate, without its braces."""
    if isinstance(key, GroupKey):
        group = key.consumer_group.replace("%", "%25").replace(":", "%3A")
        return f"{key.stream_prefix}:{group}"
    return key.stream_prefix
