"""A model that does what it is told: a Responses API on loopback, for tests, demonstrations and offline trials.

`script.py` says what a prompt can ask for, `server.py` answers. Nothing here is needed to drive a real model.
"""

from proofbox.agents.fakemodel.script import ModelScript, ResponseRule, load_rules
from proofbox.agents.fakemodel.server import FakeModel, RecordedRequest

__all__ = ["FakeModel", "ModelScript", "RecordedRequest", "ResponseRule", "load_rules"]
