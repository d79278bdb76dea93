"""What a pull request says of itself: what changes, what was verified, and the packet that says so."""

from __future__ import annotations

from collections import Counter

from proofbox.core.text import preview, printable
from proofbox.core.words import counted
from proofbox.delivery.patch.patchset import Patchset
from proofbox.delivery.proof import Proof
from proofbox.delivery.source.tree import SourceTree

_MOST = 50


def title(patch: Patchset, app_id: str) -> str:
    count = Counter(str(change.operation) for change in patch.changes)
    told = ", ".join(f"{count[name]} {word}" for name, word in _WORDS.items() if count[name])
    return f"Update {preview(_plain(app_id), 80)[0]}: {told}"


def body(patch: Patchset, tree: SourceTree, proof: Proof, note: str = "") -> str:
    """Markdown. Names and words that others chose are in code spans, where they mean nothing."""
    lines = [printable(note), ""] if note else []
    lines += [f"{counted(len(patch.changes), 'change')}, patch `{patch.patch_id[:16]}`.", ""]
    for change in patch.changes[:_MOST]:
        renamed = f" (renamed from {_code(change.renamed_from)})" if change.renamed_from else ""
        lines.append(f"- {change.operation} {_code(change.path)}{renamed}")
    if len(patch.changes) > _MOST:
        lines.append(f"- and {len(patch.changes) - _MOST} more")
    if patch.kept:
        kept = ", ".join(_code(path) for path in patch.kept[:_MOST])
        lines += ["", f"Changed here and not by us, so left as they are: {kept}"]
    if tree.left_out:
        left = ", ".join(_code(each.path) for each in tree.left_out[:_MOST])
        lines += ["", f"Left out, because they look like secrets or can't be delivered: {left}"]
    lines += ["", *_evidence(proof)]
    return "\n".join(lines)


_WORDS = {"add": "added", "modify": "modified", "delete": "deleted"}


def _evidence(proof: Proof) -> list[str]:
    if proof.packet_sha256 is None:
        return ["**Not proven**: sent without evidence."]
    lines = ["## Evidence", "", _standing(proof), "", "| aspect | result | by | how |", "|---|---|---|---|"]
    lines += [
        f"| {each.aspect} | {_code(each.result)} | {_code(each.by)} | {_code(each.how)} |" for each in proof.results
    ]
    lines += [
        "",
        f"- run {_code(proof.run_id or '')}, policy {_code(proof.policy or '')}",
        f"- packet sha256 `{proof.packet_sha256}`",
        f"- tree sha256 `{proof.tree_sha256}`" if proof.tree_sha256 else "- the evidence names no tree",
    ]
    return lines


def _standing(proof: Proof) -> str:
    if proof.standing == "proven":
        return f"**Proven**: signed by the trusted key `{proof.signed_by}`."
    if proof.standing == "consistent, not signed":
        return "**Consistent, not signed**: the evidence agrees with itself, and no trusted key vouches for it."
    return "**Not proven**: " + "; ".join(_code(problem) for problem in proof.problems[:5])


def _code(text: str) -> str:
    shown = preview(_plain(text), 200)[0].replace("|", "\\|")
    return f"`{shown}`" if shown else ""


def _plain(text: str) -> str:
    return printable(text).replace("`", "'").replace("\n", " ")
