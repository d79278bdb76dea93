"""The funnel: a program in a box asks the supervisor outside to run a command, and the supervisor records it.

`proofbox run -- COMMAND` in the box is a small static program (`sandbox/agent/boxrun.c`) that forwards bytes. Every
client of the socket counts as the agent and is not trusted: it can have a command run, which is then recorded, but it
can't create a record of a command that did not run. Commands that the agent runs directly bypass the funnel, and are
not recorded as observed.
"""

SOCKET_PLACE = "/run/proofbox/funnel"
HELPER = "/run/proofbox/bin/proofbox"
"""Paths of the socket and of the client program in the box."""
