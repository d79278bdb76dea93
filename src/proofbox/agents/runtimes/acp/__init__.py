"""The runtime for agents that speak the Agent Client Protocol (ACP), version 1, on stdio, one process per thread.

`settings.py` defines the settings and `profiles.py` the agents that proofbox knows; `finding.py` finds their programs.
`program.py` runs one process, `decoder.py` translates its updates, and `requests.py` answers its requests. `threads.py`
remembers threads, and `session.py` implements the session.
"""

from proofbox.agents.runtimes.acp.runtime import AcpRuntime
from proofbox.agents.runtimes.acp.settings import AcpSettings

__all__ = ["AcpRuntime", "AcpSettings"]
