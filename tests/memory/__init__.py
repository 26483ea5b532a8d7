"""One worker under a flood of strangers: its memory is the same after a million requests.

python -m tests.memory --requests 1000000        floods a real server and says how its memory went
"""
