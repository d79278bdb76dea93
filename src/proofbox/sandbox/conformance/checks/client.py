"""A second client for the checks in `detached.py`: makes one call to the sandbox service and prints the result as JSON.

Arguments: the project, the provider, one of `start`, `exec` and `stop`, and the arguments of that operation.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from proofbox.sandbox.service import Sandboxes


def main(project: str, provider: str, operation: str, *args: str) -> dict[str, Any]:
    with Sandboxes(project) as boxes:
        if operation == "start":
            session = boxes.start_session(provider=provider, detached=True, ttl=float(args[0]))
            if args[1:]:
                session.exec(["sh", "-c", *args[1:]], timeout=30)
            return {"id": session.id, "state": session.info.state}
        if operation == "exec":
            result = boxes.exec_in_session(args[0], ["sh", "-c", *args[1:]], timeout=30)
            return {"exit_code": result.exit_code, "stdout": result.stdout, "provider": result.provider}
        return {"state": boxes.stop_session(args[0]).state}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
