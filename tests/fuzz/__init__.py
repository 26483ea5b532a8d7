"""Requests that nobody would think of: generated from the API description, and as raw bytes on a socket.

python -m tests.fuzz --cases 10000          as many generated requests, then the raw ones (`--seed` repeats a run)
"""
