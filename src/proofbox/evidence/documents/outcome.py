"""`outcome.json`: the result of an attempt. Claimed, verified and infra are recorded separately.

    claimed    what the agent says about its work
    verified   what a verifier found
    infra      whether the infrastructure worked

Each has a result, who established it, and how. `unknown` never counts as success: success is never inferred.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from proofbox.core.documents import declare
from proofbox.evidence.bundle.index import refuse_other_schema
from proofbox.evidence.documents import shape

PATH = "outcome.json"
SCHEMA = "proofbox.outcome/1"
MAX_BYTES = 1 << 21
RESULTS = {
    "claimed": ("passed", "failed", "unknown"),
    "verified": ("passed", "failed", "unknown"),
    "infra": ("ok", "failed", "unknown"),
}

_MEANINGS = {
    "claimed": "What the agent says about its work.",
    "verified": "What a verifier found.",
    "infra": "Whether the infrastructure worked.",
}


class Verdict(NamedTuple):
    """One of the three results. `by` is its source (`runtime_reported`: the agent's own claim), `how` the method."""

    result: str
    by: str = ""
    how: str = ""
    detail: str = ""

    def as_json(self) -> dict[str, str]:
        return {"result": self.result, "by": self.by, "how": self.how, "detail": self.detail}


UNKNOWN = Verdict("unknown")


class Outcome(NamedTuple):
    """The three results of an attempt."""

    claimed: Verdict = UNKNOWN
    verified: Verdict = UNKNOWN
    infra: Verdict = UNKNOWN

    def as_json(self) -> dict[str, Any]:
        """Return the document for `BundleWriter.write_json("outcome.json", …)`."""
        document = {
            "schema_version": SCHEMA,
            "claimed": self.claimed.as_json(),
            "verified": self.verified.as_json(),
            "infra": self.infra.as_json(),
        }
        check_outcome(document)
        return document


_OBJECT = shape.table(shape.anything)
_DOCUMENT = shape.record(
    {
        "schema_version": shape.text(200),
        **{
            name: shape.record(
                {
                    "result": shape.one_of(*results).meaning("`unknown`: not established."),
                    "by": shape.text(1000).meaning("The source; `runtime_reported`: the agent's own claim."),
                    "how": shape.text(1000).meaning("The method."),
                    "detail": shape.text(1 << 16).meaning("Details for people; may be empty."),
                }
            ).meaning(_MEANINGS[name])
            for name, results in RESULTS.items()
        },
    }
)
declare(
    SCHEMA,
    at="BUNDLE/outcome.json of an attempt",
    meaning="The result of an attempt: three separately established results.",
    shape=_DOCUMENT.json_schema,
)


def check_outcome(document: Any) -> None:
    """Raise ShapeError unless this is a valid outcome. A result other than unknown needs `by` and `how`."""
    _OBJECT(document, "outcome")
    refuse_other_schema(document, SCHEMA)
    _DOCUMENT(document, "outcome")
    for name in RESULTS:
        verdict = document[name]
        if verdict["result"] != "unknown" and not (verdict["by"] and verdict["how"]):
            raise shape.ShapeError(f"outcome.{name} is {verdict['result']} but lacks `by` or `how`")


def parse_outcome(document: Any) -> Outcome:
    check_outcome(document)
    return Outcome(**{name: Verdict(**document[name]) for name in RESULTS})
