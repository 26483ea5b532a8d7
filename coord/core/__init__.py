"""The rules: decide(aggregate, command, moment) -> events and reply. No clock, no I/O, no random, no log lines.

Theory of operation. A command is decided on a `Course`: a private draft of the aggregate, to which each event is applied by
the same `evolve` that replay uses, as soon as it is recorded. So a rule looks at the state as it has become, the reply is
read off the end, and neither can disagree with the log. A decision that records nothing is the steady case: the shell then
only checks that what it was decided on is still current. Time, identity, leases and policy come in with the `Moment`.
"""
