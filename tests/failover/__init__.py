"""Real failovers of Redis under live members, with replication lag, so that Redis forgets what it has acknowledged.

    python -m tests.failover --topology sentinel|cluster --how kill|freeze --times 20
    python -m tests.failover --topology restore

Before each failover the replicas are made to lag while members go on joining, leaving and heartbeating; then the master that
holds the group is killed (SIGKILL) or frozen (SIGSTOP; it wakes up later and believes it is the master still). Judged: no shard
had two holders, as members and consumers themselves saw it; every correction round that was due was opened and has ended; the
group converges; what `WAIT 1` had confirmed was consumed; nothing was forgotten at any other time; `coord verify` finds nothing.
"""
