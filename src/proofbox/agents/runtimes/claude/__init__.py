"""The Claude Code runtime: the `claude` program with stream-json on both sides, in a box, one process per thread.

`binary.py` finds the program and checks its version, and `settings.py` defines its settings. `program.py` runs one
process and its control protocol, and `listener.py` handles its messages: `decoder.py` translates them, and
`permissions.py` answers requests. `threads.py` remembers threads, and `session.py` implements the session.
"""

from proofbox.agents.runtimes.claude.runtime import ClaudeCode
from proofbox.agents.runtimes.claude.settings import ClaudeSettings

__all__ = ["ClaudeCode", "ClaudeSettings"]
