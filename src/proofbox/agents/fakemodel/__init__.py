"""A scriptable fake model on loopback, for tests, demonstrations and offline trials: OpenAI Responses and Anthropic
Messages.

`script.py` defines the directives that a prompt can contain, and `server.py` serves the APIs. Real models don't need it.
"""

from proofbox.agents.fakemodel.script import ModelScript, ResponseRule, load_rules
from proofbox.agents.fakemodel.server import FakeModel, RecordedRequest

__all__ = ["FakeModel", "ModelScript", "RecordedRequest", "ResponseRule", "load_rules"]
