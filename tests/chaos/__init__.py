"""Real coordinators on a real store, killed again and again under members that come and go.

    python -m tests.chaos --seconds 120 --port P [--store postgresql --database-every 5]

Two coordinators of two workers each, 50 members heartbeating through both at random, a stream that is scaled. A coordinator is
killed with SIGKILL every few seconds. Judged afterwards: no shard was held by two members at once, as they received their
answers; every acknowledged change is in the log; `coord verify` finds nothing.
"""
