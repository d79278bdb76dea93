"""Write one self-contained HTML file: an attempt, a run or a campaign, with its evidence.

The file uses the templates of the server. Text from agents and the three outcomes are not part of the markup: the
browser fills them in from embedded bytes whose SHA-256 matches the embedded index. Summaries are labelled as unchecked.
Only valid, committed evidence is exported.
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from proofbox.core.clock import SystemClock, isoformat
from proofbox.core.files.atomic import write_document
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import BundleInProgress, NotFoundError
from proofbox.evidence.bundle.paths import INDEX, read_bounded, resolve
from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.evidence.promotion.packet import SUFFIX
from proofbox.evidence.verify.embedded import EmbeddedBundle, LeftOutFile, embed
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.trace import EVENTS
from proofbox.lab.campaign.running import resume_hint
from proofbox.lab.reports.campaigns.loading import load_campaign
from proofbox.viewer.annotations import notes_of
from proofbox.viewer.attempts import attempt_texts, read_attempt
from proofbox.viewer.campaigns import plots_of
from proofbox.viewer.catalog import kind_of
from proofbox.viewer.reading import OpenedEvidence
from proofbox.viewer.rendering import Renderer, assets
from proofbox.viewer.runs import RunReader
from proofbox.viewer.selection import Query, Selection, run_values
from proofbox.viewer.timeline import read_timeline

MAX_BYTES: Final = 24 << 20
"""Maximum size of the embedded evidence, before base64."""
MAX_FILE: Final = 2 << 20
"""Maximum size of one embedded file."""
MAX_EVENTS: Final = 500
"""Events of an attempt that are on its page; the others are in the embedded evidence."""
MAX_ATTEMPTS: Final = 500
"""Maximum number of attempts that have a page in the file."""
_MAX_PACKET: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class HtmlExport:
    """A written file, and what it does not contain."""

    path: str
    """The path of the file."""
    bytes: int
    """Its size."""
    attempts: int
    """The number of attempts in it."""
    left_out: tuple[LeftOutFile, ...]
    """Files of the evidence that were too large to embed."""


@dataclass(slots=True)
class _Content:
    """The evidence and the pages of an export, up to their limits."""

    bundles: list[EmbeddedBundle] = field(default_factory=list)
    left_out: list[LeftOutFile] = field(default_factory=list)
    pages: list[Markup] = field(default_factory=list)
    attempts: list[tuple[str, OpenedEvidence]] = field(default_factory=list)
    size: int = 0

    def add(self, bundle: Bundle, name: str) -> None:
        """Embed a bundle with the bundles nested in it: first its own files, then those of each attempt."""
        files: dict[str, bytes] = {}
        self._add_files(bundle, name, "", files)
        for place, inner in sorted(bundle.nested.items()):
            if self.size >= MAX_BYTES or len(self.attempts) >= MAX_ATTEMPTS:
                whole = sum(each.file_size for each in inner.artifacts.values())
                self.left_out.append(LeftOutFile(name, f"{place}/{INDEX}", whole))
                continue
            self._add_files(inner, name, f"{place}/", files)
            self.attempts.append((f"{name}/{place}", _evidence(inner)))
        if _is_attempt(bundle):
            self.attempts.append((name, _evidence(bundle)))
        beside = f"{os.path.abspath(bundle.path)}{SUFFIX}"
        packet = read_bounded(beside, _MAX_PACKET) if os.path.isfile(beside) else None
        self.bundles.append(EmbeddedBundle(name, files, packet))

    def _add_files(self, bundle: Bundle, name: str, prefix: str, files: dict[str, bytes]) -> None:
        index = read_bounded(os.path.join(bundle.path, INDEX), MAX_FILE)
        files[f"{prefix}{INDEX}"] = index
        self.size += len(index)
        for path, artifact in bundle.artifacts.items():
            if artifact.is_nested_index:
                continue  # embedded with its bundle
            if artifact.file_size > MAX_FILE or self.size + artifact.file_size > MAX_BYTES:
                self.left_out.append(LeftOutFile(name, prefix + path, artifact.file_size))
                continue
            files[prefix + path] = bundle.read_bytes(path)
            self.size += artifact.file_size


def export_html(path: str | os.PathLike[str], file: str | os.PathLike[str]) -> HtmlExport:
    """Write an attempt, a run or a campaign as one HTML file that contains its evidence.

    For example:

        print(proofbox.export_html("out", "report.html").left_out)

    `path` is the directory of a bundle or of a campaign, or an output directory, for its last run. The file is at most
    about 40 MB; `left_out` lists the files that were too large. Raises `BundleCorrupt` if the evidence is invalid, and
    `BundleInProgress` if it is not committed. `proofbox.verify` extracts and verifies the evidence of such a file.
    """
    place = Path(path)
    content = _Content()
    renderer = Renderer("export")
    title = _campaign(place, content, renderer) if kind_of(place) == "campaign" else _bundle(place, content, renderer)
    for at, evidence in content.attempts:
        content.pages.append(_page("attempt", at, _attempt(renderer, at, evidence)))
    script = b"\n".join(assets()[name] for name in ("viewer.js", "evidence.js")).decode()
    style = assets()["viewer.css"].decode()
    text = renderer.render(
        "export.html",
        title=title,
        pages=content.pages,
        bundles=[
            (each, _key_ids(each.packet), hashlib.sha256(each.files[INDEX]).hexdigest()) for each in content.bundles
        ],
        left_out=content.left_out,
        written_at=isoformat(SystemClock().now()),
        evidence=_own(embed(content.bundles, content.left_out)),
        script=_own(script),
        style=_own(style),
        policy=f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)};"
        " base-uri 'none'; form-action 'none'",
        file=os.path.basename(os.fspath(file)),
    )
    data = text.encode()
    write_document(Path(file), data)
    return HtmlExport(os.fspath(file), len(data), len(content.attempts), tuple(content.left_out))


def _bundle(place: Path, content: _Content, renderer: Renderer) -> str:
    directory = Path(resolve(place))
    bundle = load_bundle(directory)
    name = directory.resolve().name
    content.add(bundle, name)
    if _is_attempt(bundle):
        return name
    kind = kind_of(directory)
    if kind != "run":
        raise NotFoundError(
            f"{place} is a {str(kind).replace('_', ' ')}; attempts, runs and campaigns can be exported", op="view"
        )
    content.pages.append(_page("run", name, _run(renderer, directory)))
    return name


def _campaign(place: Path, content: _Content, renderer: Renderer) -> str:
    report = load_campaign(place)
    if not report.committed:
        hints = ["wait until it has ended"] if report.running else [resume_hint(place)]
        raise BundleInProgress(f"the campaign in {place} is not committed", op="view", fix_hints=hints)
    content.add(load_bundle(report.bundle), Path(report.bundle).name)
    body = renderer.render("_campaign.html", report=report, plots=plots_of(report), at=report.results.campaign)
    content.pages.append(_page("campaign", report.results.campaign, body))
    for flow in report.flows:
        directory = place.resolve() / flow.run
        content.add(load_bundle(directory), directory.name)
        content.pages.append(_page("run", directory.name, _run(renderer, directory, report.results.campaign)))
    return report.results.campaign


def _run(renderer: Renderer, directory: Path, campaign: str = "") -> Markup:
    view = RunReader().read(directory)
    every = Selection(view.rows[:MAX_ATTEMPTS], len(view.rows), 1, 1)
    values = {**run_values(directory.resolve().name, view, Query()), "selection": every, "campaign": campaign}
    return renderer.render("_run.html", **values)


def _attempt(renderer: Renderer, at: str, evidence: OpenedEvidence) -> Markup:
    return renderer.render(
        "_attempt.html",
        at=at,
        bundle=at,
        evidence=evidence,
        attempt=read_attempt(evidence),
        timeline=read_timeline(evidence, 0, MAX_EVENTS),
        notes=notes_of(evidence.path),
        **attempt_texts(evidence),
    )


def _own(text: str) -> Markup:
    """Return a script, a style sheet or encoded evidence as markup: none of them contains text from an agent."""
    return Markup(text)  # noqa: S704


def _page(kind: str, at: str, body: Markup) -> Markup:
    return Markup('<article class="page" data-page="{}/{}">{}</article>').format(kind, at, body)


def _evidence(bundle: Bundle) -> OpenedEvidence:
    now = isoformat(SystemClock().now())
    return OpenedEvidence(Path(bundle.path), bundle, bundle.directory, (), False, now)


def _is_attempt(bundle: Bundle) -> bool:
    return artifacts.ATTEMPT in bundle.artifacts or artifacts.TORN in bundle.artifacts or EVENTS in bundle.artifacts


def _key_ids(packet: bytes | None) -> list[str]:
    """Return the ids of the keys that a packet says it is signed with; the page does not check signatures."""
    if packet is None:
        return []
    try:
        document = parse_json(packet, dict[str, Any])
        return [str(each.get("keyid", ""))[:64] for each in document.get("signatures", [])][:8]
    except (ValueError, AttributeError, TypeError):
        return []


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
