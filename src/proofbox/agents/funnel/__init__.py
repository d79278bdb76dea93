"""The funnel: a program in a box asks the supervisor outside to run a command, and the supervisor keeps the record.

`proofbox run -- COMMAND` in the box is a small static program (`sandbox/agent/boxrun.c`) that carries bytes. Whoever
speaks to the socket is the agent, and is not believed: it can have something run, and then there is a record of it; it
can't have a record of what was not run. What it runs by itself passes by here, and is not in the record as observed.
"""

SOCKET_PLACE = "/run/proofbox/funnel"
HELPER = "/run/proofbox/bin/proofbox"
"""Where a box has the two."""
