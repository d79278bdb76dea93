"""Codex, driven over its app-server: `codex app-server` on stdio, inside one of our boxes.

`binary.py` finds the program and says whether it is one we can drive, `settings.py` what it is told, `program.py` holds
one running instance, `session.py` keeps a session over it, `decoder.py` translates what it says, `failures.py` what
went wrong, and `approvals.py` answers what it asks.
"""

from proofbox.agents.codex.runtime import CodexAppServer
from proofbox.agents.codex.settings import CodexSettings

__all__ = ["CodexAppServer", "CodexSettings"]
