"""A scriptable fake model on loopback, for tests, demonstrations and offline trials.

`script.py` defines the directives that a prompt can contain, and `server.py` serves OpenAI's Responses API,
Anthropic's Messages API and Google's Gemini API. Real models don't need it.
"""

from proofbox.agents.fakemodel.script import ModelScript, ResponseRule, load_rules
from proofbox.agents.fakemodel.server import FakeModel, RecordedRequest

__all__ = ["FakeModel", "ModelScript", "RecordedRequest", "ResponseRule", "load_rules"]
