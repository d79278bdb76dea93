"""`python3 -I .../proofbox/evidence/verify PATH`: the command for auditors; see `verifier.py`."""

from __future__ import annotations

import os
import sys

if not __package__:  # started by path: import the package from there, not modules beside this file
    sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))

from proofbox.evidence.verify.verifier import main

if __name__ == "__main__":
    sys.exit(main())
