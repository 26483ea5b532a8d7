"""Rules taken out one at a time, and the proof that the simulator misses each of them.

    python -m tests.mutants [--only NAME] [--seeds 200] [--jobs 2]

Each `*.patch` here is one mutant: a change of a line or a few against the root of the repository, under a header

    # rule: what it takes out
    # killed by: the checker of `tests/simulation/checkers.py` that must see it (two, where either may be first)
    #            or `pytest tests/...::test_name`, for what the simulator cannot show by its nature
    # ticks: 1000, of each run (may be left out)
    # variant: the variant of `tests/simulation/faults.py` to run, where the rule needs that (else that of the seed's number)

A mutant must be killed within the seeds, by what its header names. The working tree is only read.
"""
