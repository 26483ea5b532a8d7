"""The shell: loads, asks the core, commits, answers; loops, caches, clocks and sagas live here."""
