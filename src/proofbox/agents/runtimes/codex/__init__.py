"""The Codex runtime: `codex app-server` on stdio, in a box.

`binary.py` finds the program and checks its version, and `settings.py` defines its settings. `launch.py` prepares the
start, `program.py` runs one instance, and `session.py` implements the session. `listener.py` handles everything that
Codex sends: `decoder.py` translates notifications, `failures.py` classifies errors, and `approvals.py` answers
requests.
"""

from proofbox.agents.runtimes.codex.runtime import CodexAppServer
from proofbox.agents.runtimes.codex.settings import CodexSettings

__all__ = ["CodexAppServer", "CodexSettings"]
