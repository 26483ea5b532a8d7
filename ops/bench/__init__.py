"""`make bench`: what the coordinator can do on this machine, line by line, each with its goal.

    python -m ops.bench                 everything, about half an hour
    QUICK=1 python -m ops.bench         everything in about two minutes: shows that each line works, and rough figures
    ONLY=a,b python -m ops.bench        only these lines

Only ratios between figures of one run mean anything: machines differ, and one machine differs from minute to minute. So
each heartbeat line is measured between two floors (the same app and engine without a store), in turn with what it is
compared with; where the two floors differ by more than a fifth it is measured once more, and then marked invalid.

`lines` holds what is measured, the modules beside it what is needed to do so. Source: design page `performance.md`.
"""
