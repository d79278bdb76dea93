"""Write the title and description of a pull request: the changes, the results, and the packet that proves them."""

from __future__ import annotations

from collections import Counter

from proofbox.core.plurals import counted
from proofbox.core.text import preview, printable
from proofbox.delivery.patch.patchset import Patchset
from proofbox.delivery.proof import Proof
from proofbox.delivery.source.tree import SourceTree

_MAX_LISTED = 50


def title(patch: Patchset, app_id: str, given: str = "") -> str:
    """Return the title on one line: the given one, or a count of the changes."""
    if given:
        return _plain(given)
    count = Counter(str(change.operation) for change in patch.changes)
    counts = ", ".join(f"{count[name]} {word}" for name, word in _WORDS.items() if count[name])
    return f"Update {preview(_plain(app_id), 80)[0]}: {counts}"


def body(patch: Patchset, tree: SourceTree, proof: Proof, note: str = "") -> str:
    """Return the description in Markdown. Untrusted names and texts are in code spans, without markup.

    The evidence comes first and the sender's note last, quoted, so that no markup in the note can hide or imitate it.
    """
    lines = [*_evidence(proof), "", f"{counted(len(patch.changes), 'change')}, patch `{patch.patch_id[:16]}`.", ""]
    for change in patch.changes[:_MAX_LISTED]:
        renamed = f" (renamed from {_code(change.renamed_from)})" if change.renamed_from else ""
        lines.append(f"- {change.operation} {_code(change.path)}{renamed}")
    if len(patch.changes) > _MAX_LISTED:
        lines.append(f"- and {len(patch.changes) - _MAX_LISTED} more")
    if patch.kept:
        kept = ", ".join(_code(path) for path in patch.kept[:_MAX_LISTED])
        lines += ["", f"Changed in the repository by others, so not touched: {kept}"]
    if tree.left_out:
        left = ", ".join(_code(each.path) for each in tree.left_out[:_MAX_LISTED])
        lines += ["", f"Left out, because they look like secrets or cannot be delivered: {left}"]
    if note:
        lines += ["", "The sender's message:", "", *(f"> {line}".rstrip() for line in printable(note).split("\n"))]
    return "\n".join(lines)


_WORDS = {"add": "added", "modify": "modified", "delete": "deleted"}


def _evidence(proof: Proof) -> list[str]:
    if proof.packet_sha256 is None:
        return ["**Not proven**: sent without evidence."]
    lines = [_standing(proof), "", "## Evidence", "", "| aspect | result | by | how |", "|---|---|---|---|"]
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
        return "**Consistent, not signed**: the evidence is consistent, but no trusted key has signed it."
    return "**Not proven**: " + "; ".join(_code(problem) for problem in proof.problems[:5])


def _code(text: str) -> str:
    shown = preview(_plain(text), 200)[0].replace("|", "\\|")
    return f"`{shown}`" if shown else ""


def _plain(text: str) -> str:
    return printable(text).replace("`", "'").replace("\n", " ")
