"""The tests; a package so that shared parts import as `tests.servers` and no other distribution's `tests` gets in the way."""
