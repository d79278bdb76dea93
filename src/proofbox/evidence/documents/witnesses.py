"""`path_witnesses.json`: the kernel's own path for each requested path.

A probe requests one path, but a policy may match another because of links, firmlinks or mounts. The probe's driver
therefore reads the kernel's path from the open descriptor, and asks the kernel with `openat2` whether the path leads
through links. `normalized_path` is a conservative join key: the observed path, or else the requested path made
absolute; it is never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from proofbox.core.documents import declare
from proofbox.evidence.bundle.index import refuse_other_schema
from proofbox.evidence.bundle.paths import shown
from proofbox.evidence.documents import shape

PATH = "path_witnesses.json"
SCHEMA = "proofbox.path_witnesses/1"


class PathWitness(NamedTuple):
    """A requested path, and the kernel's path for it."""

    requested_path: str
    observed_path: str | None
    observed_path_nofirmlink: str | None
    normalized_path: str
    error: str | None = None
    """The reason for a missing observation."""
    followed_links: bool | None = None
    """Whether the requested path led through symbolic links; None if the kernel does not say."""

    def as_json(self) -> dict[str, Any]:
        return {
            "requested_path": shown(self.requested_path),
            "observed_path": None if self.observed_path is None else shown(self.observed_path),
            "observed_path_nofirmlink": (
                None if self.observed_path_nofirmlink is None else shown(self.observed_path_nofirmlink)
            ),
            "normalized_path": shown(self.normalized_path),
            "error": self.error,
            "followed_links": self.followed_links,
        }


def witnesses_document(witnesses: Iterable[PathWitness]) -> dict[str, Any]:
    """Return the document for `BundleWriter.write_json("path_witnesses.json", …)`."""
    return {"schema_version": SCHEMA, "witnesses": [each.as_json() for each in witnesses]}


_TEXT = shape.text(1 << 14)
_DOCUMENT = shape.record(
    {
        "schema_version": shape.text(200),
        "witnesses": shape.array(
            shape.record(
                {
                    "requested_path": _TEXT.meaning("The requested path."),
                    "observed_path": shape.or_null(_TEXT).meaning("The kernel's path."),
                    "observed_path_nofirmlink": shape.or_null(_TEXT).meaning(
                        "On macOS, the kernel's path without firmlinks."
                    ),
                    "normalized_path": _TEXT.meaning("The observed path, or else the requested path made absolute."),
                    "error": shape.or_null(_TEXT).meaning("The reason for a missing observation, else null."),
                },
                {
                    "followed_links": shape.or_null(shape.flag).meaning(
                        "Whether the requested path led through symbolic links (`openat2`); null: not known."
                    ),
                },
            )
        ).meaning("One per path, in the order of the requests."),
    }
)
declare(
    SCHEMA,
    at="BUNDLE/path_witnesses.json",
    meaning="The kernel's own path for each requested path.",
    shape=_DOCUMENT.json_schema,
)


def check_witnesses(document: Any) -> None:
    shape.table(shape.anything)(document, "path_witnesses")
    refuse_other_schema(document, SCHEMA)
    _DOCUMENT(document, "path_witnesses")
