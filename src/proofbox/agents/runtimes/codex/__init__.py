"""Codex, driven over its app-server: `codex app-server` on stdio, inside one of our boxes.

`binary.py` finds the program and says whether it is one we can drive, `settings.py` what it is told; `launch.py` puts
in place what it needs, `program.py` holds one running instance, `session.py` keeps a session over it, and `listener.py`
hears what is said there: `decoder.py` translates it, `failures.py` says what went wrong, and `approvals.py` answers.
"""

from proofbox.agents.runtimes.codex.runtime import CodexAppServer
from proofbox.agents.runtimes.codex.settings import CodexSettings

__all__ = ["CodexAppServer", "CodexSettings"]
