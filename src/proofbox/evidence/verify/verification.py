"""The result of a verification, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from proofbox.core.plurals import counted
from proofbox.core.text import one_line
from proofbox.errors import BundleCorrupt, BundleInProgress, BundleSchemaUnknown, PacketInvalid, ProofboxError
from proofbox.evidence.bundle.paths import shown
from proofbox.evidence.verify.check import BundleFinding, CheckCounts


@dataclass(slots=True)
class Verification:
    """The result of a verification. `notes` are informative and not findings."""

    path: str
    run_id: str | None = None
    status: str | None = None
    bundle: str | None = None
    packet: str | None = None
    promotable: bool | None = None
    policy: str | None = None
    """The name of the packet's policy."""
    pinned: bool | None = None
    """Whether the packet pins its bundle by digest; None without a packet that could be read."""
    own_policy: bool | None = None
    """Whether the policy is a custom one, whose requirements its author defined, and not built in."""
    signed_by: str | None = None
    """The id of the given key that signed the packet; None if it is not signed or no key was given."""
    enveloped: bool = False
    """Whether the packet has a signature, checked or not."""
    checked: CheckCounts = field(default_factory=CheckCounts)
    findings: list[BundleFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings

    def found(self, code: str, path: str, detail: str) -> None:
        self.findings.append(BundleFinding(code, path, detail))

    def error(self) -> ProofboxError | None:
        """Return the error for a failed verification; None if it succeeded."""
        if self.ok:
            return None
        codes = {finding.code for finding in self.findings}
        kind: type[ProofboxError] = BundleCorrupt
        if "in_progress" in codes:
            kind = BundleInProgress
        elif "schema_unknown" in codes:
            kind = BundleSchemaUnknown
        elif any(code.startswith(("packet_", "signature_", "verdict_", "policy_", "bundle_absent")) for code in codes):
            kind = PacketInvalid
        return kind(self.line(), op="verify", fix_hints=["see what differs, and where, in the findings"])

    def line(self) -> str:
        """Return the result in one line, with the first finding."""
        if not self.findings:
            return self.summary()
        first, count = self.findings[0], len(self.findings)
        found = f"{count} findings, the first" if count > 1 else "one finding"
        return f"{self.summary()}; {one_line(f'{found}: {first.code} {first.path} ({first.detail})')}"

    def summary(self) -> str:
        """Return the result in one line, without findings."""
        checked = self.checked
        what = f"{self.run_id or shown(self.path)} ({self.status or 'no status'})"
        amounts = (
            (checked.files, "file"),
            (checked.bytes, "byte"),
            (checked.bundles, "bundle"),
            (checked.chains, "chain"),
        )
        amount = ", ".join(counted(number, what) for number, what in amounts)
        parts = [f"{'valid' if self.ok else 'INVALID'}: {what}: {amount}"]
        if self.packet is not None:
            by = f" by a custom policy: {self.policy!r}" if self.own_policy else ""
            parts.append(("promotable" if self.promotable else "not promotable") + by)
            parts.append(self.signature_status())
        return one_line("; ".join(parts))

    def signature_status(self) -> str:
        """Return the signature status of the packet."""
        if self.signed_by:
            return f"signed by {self.signed_by[:16]}…"
        if self.enveloped:
            wrong = any(finding.code == "signature_wrong" for finding in self.findings)
            return "signature wrong" if wrong else "signature not checked"
        unpinned = "unpinned, " if self.pinned is False else ""
        return unpinned + ("consistent, not signed" if self.ok else "not signed")

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "path": shown(self.path),
            "run_id": self.run_id,
            "status": self.status,
            "bundle": None if self.bundle is None else shown(self.bundle),
            "packet": None if self.packet is None else shown(self.packet),
            "promotable": self.promotable,
            "policy": self.policy,
            "pinned": self.pinned,
            "own_policy": self.own_policy,
            "signed_by": self.signed_by,
            "checked": {
                "files": self.checked.files,
                "bytes": self.checked.bytes,
                "bundles": self.checked.bundles,
                "chains": self.checked.chains,
            },
            "findings": [finding.as_json() for finding in self.findings],
            "notes": self.notes,
            "error": error.as_dict() if (error := self.error()) else None,
        }
