"""The Codex runtime: `codex app-server` on stdio, in a box.

`binary.py` finds the program and checks its version, and `settings.py` defines its settings. `program.py` prepares and
runs one instance, `supervisor.py` restarts it, and `session.py` implements the session, with `ending.py` for turns that
end early. `listener.py` handles everything that Codex sends: `decoder.py` translates notifications, `failures.py`
classifies errors, and `approvals.py` answers requests.
"""

from proofbox.agents.runtimes.codex.runtime import CodexAppServer
from proofbox.agents.runtimes.codex.settings import CodexSettings

__all__ = ["CodexAppServer", "CodexSettings"]
