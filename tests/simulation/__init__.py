"""A seeded simulator of the whole protocol: the real rules, executor, sagas, resharder and client, in one thread.

    python -m tests.simulation --seed N --ticks N        repeats one run; exit 1 with the line that repeats it
    python -m tests.simulation --seeds N --from N        many runs

Faults: see `tests/simulation/faults.py`. Checkers (`checkers.py`) look at what the processes do and at what the log says, and
know none of the rules that they check.
"""
