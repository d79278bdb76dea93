"""A scriptable fake model: a Responses API on loopback, for tests, demonstrations and offline trials.

`script.py` defines the directives that a prompt can contain, and `server.py` serves the API. Real models don't need it.
"""

from proofbox.agents.fakemodel.script import ModelScript, ResponseRule, load_rules
from proofbox.agents.fakemodel.server import FakeModel, RecordedRequest

__all__ = ["FakeModel", "ModelScript", "RecordedRequest", "ResponseRule", "load_rules"]
