"""The pages of the viewer and their addresses. Each handler reads in a thread, renders, and returns."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from proofbox.delivery.backend.sessions import PREFIX, has_token, is_from_our_page
from proofbox.errors import NotFoundError, ProofboxError
from proofbox.lab.reports.campaigns.loading import load_campaign
from proofbox.lab.reports.campaigns.results import CampaignReport
from proofbox.probes.comparison import compare_plan_runs
from proofbox.viewer.annotations import add_note, notes_of
from proofbox.viewer.attempts import (
    MAX_TEXT,
    attempt_texts,
    diff_part,
    find_step,
    fork_command,
    output_name,
    read_attempt,
)
from proofbox.viewer.background import BackgroundReader, Reading
from proofbox.viewer.bundles import bundle_values
from proofbox.viewer.campaigns import campaign_evidence_mark, campaign_mark, plots_of
from proofbox.viewer.catalog import find_items, kind_of, place_of
from proofbox.viewer.compare import compare_attempts, compare_flows
from proofbox.viewer.reading import EvidenceCache
from proofbox.viewer.rendering import STYLE, Renderer, address, assets, cut
from proofbox.viewer.runs import RunReader, evidence_mark, is_small, run_mark, unchecked_view
from proofbox.viewer.selection import ROWS, Query, run_values
from proofbox.viewer.snapshots import file_after, files_after
from proofbox.viewer.timeline import read_timeline
from proofbox.viewer.web.access import Access
from proofbox.viewer.web.live import changes

MAX_OTHERS: Final = 100
SMALL_WAIT: Final = 0.5
"""Seconds that a page waits for what it shows, if that is probably read within them."""
LARGE_WAIT: Final = 0.0
"""The page of a long run shows what is known, and asks again."""
_MEDIA: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PROBLEMS: Final = {404: "This page cannot be shown", 400: "The note was not stored"}
Handler = Callable[[Request], Response]


class ViewerPages:
    """Everything below one directory, for the browser that has the session."""

    def __init__(self, root: Path, access: Access) -> None:
        self._root = root
        self._access = access
        self._renderer = Renderer()
        self._evidence = EvidenceCache()
        self._runs = BackgroundReader(RunReader().read, run_mark, evidence_mark)
        self._campaigns = BackgroundReader(load_campaign, campaign_mark, campaign_evidence_mark)

    def routes(self) -> list[Route]:
        home = PREFIX + "{session}/"
        pages: dict[str, Handler] = {
            "": self._home,
            "open": self._open,
            "run": self._run,
            "campaign": self._campaign,
            "attempt": self._attempt,
            "bundle": self._bundle,
            "timeline": self._timeline,
            "output": self._output,
            "diff": self._diff,
            "files": self._files,
            "file": self._file,
            "compare": self._compare,
            "flows": self._flows,
        }
        return [
            Route("/", self._enter, methods=["GET"]),
            Route(f"/{STYLE}", self._style, methods=["GET"]),
            *(Route(above + "sign-in", self._sign_in, methods=["POST"]) for above in ("/", home)),
            Route(home + "static/{digest}/{name}", self._static, methods=["GET"]),
            Route(home + "annotate", self._annotate, methods=["POST"]),
            Route(home + "live", self._live, methods=["GET"]),
            *(Route(home + name, self._signed_in(page), methods=["GET"]) for name, page in pages.items()),
        ]

    # Access

    async def _enter(self, request: Request) -> Response:
        """Exchange the token of the printed URL for the cookie."""
        return self._admit(request.query_params.get("token", ""), "")

    async def _sign_in(self, request: Request) -> Response:
        """Exchange a token that was pasted into the page of an ended session, and continue to the page it asked for."""
        form = await _form(request)
        return self._admit(form.get("token", ""), form.get("next", ""))

    def _admit(self, token: str, next: str) -> Response:
        if not self._access.has_token(token):
            return self._message("Not signed in", "Open the URL that `proofbox view` printed.", 403, next=next)
        page = next if next.partition("?")[0] in ("", "run", "campaign", "attempt", "bundle", "open") else ""
        answer = RedirectResponse(self._access.session.path + page, 303)
        self._access.session.set_cookie(answer)
        return answer

    def _signed_in(self, page: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if not self._access.has_session(request):
                asked = request.url.path.rpartition("/")[2]
                query = f"?{request.url.query}" if request.url.query else ""
                return self._message(
                    "Not signed in", "Open the URL that `proofbox view` printed.", 403, next=asked + query
                )
            try:
                return await anyio.to_thread.run_sync(partial(page, request))
            except ProofboxError as error:
                if request.headers.get("hx-request") == "true":  # htmx shows nothing of a failed request
                    return HTMLResponse(self._renderer.render("_problem.html", text=error.message))
                return self._problem(error, 404)
            except OSError as error:
                return self._message("Not readable", f"The files of this page cannot be read: {error.strerror}", 404)

        return answer

    async def not_found(self, _: Request, __: Exception) -> Response:
        return self._message("Not found", "There is no such page.", 404)

    async def failed(self, _: Request, error: Exception) -> Response:
        return self._message("The page failed", f"{type(error).__name__}: this is a bug in proofbox.", 500)

    def _message(
        self, title: str, text: str, status: int, *, next: str | None = None, hints: Sequence[str] = (), code: str = ""
    ) -> Response:
        page = self._renderer.render("message.html", title=title, text=text, next=next, hints=hints, code=code)
        return HTMLResponse(page, status)

    def _problem(self, error: ProofboxError, status: int) -> Response:
        text = f"{error.message[:1].upper()}{error.message[1:]}."
        return self._message(_PROBLEMS[status], text, status, hints=error.fix_hints, code=error.code)

    async def _static(self, request: Request) -> Response:
        name = str(request.path_params["name"])
        if not self._access.has_session(request) or name not in assets():
            return Response("not found", 404, media_type="text/plain")
        keep = {"Cache-Control": "private, max-age=31536000, immutable"}
        return Response(assets()[name], media_type=_MEDIA[name.rpartition(".")[2]], headers=keep)

    async def _style(self, _: Request) -> Response:
        """Return the style sheet, without a session: the page that asks for the token uses it."""
        return Response(assets()[STYLE], media_type="text/css")

    # Pages

    def _page(self, template: str, **values: Any) -> Response:
        return HTMLResponse(self._renderer.render(template, root=str(self._root), **values))

    def _place(self, request: Request) -> tuple[str, Path]:
        given = dict(parse_qsl(request.url.query, errors="surrogateescape"))  # a name may be no UTF-8
        path = place_of(self._root, given.get("at", "."))
        return os.path.relpath(path, self._root), path

    def _home(self, request: Request) -> Response:
        if kind_of(self._root) not in (None, "campaign"):
            return self._open(request)
        kind = request.query_params.get("kind", "")
        text = request.query_params.get("q", "")
        catalog = find_items(self._root)
        items = [
            item
            for item in catalog.items
            if (not kind or item.kind == kind) and (not text or text.casefold() in f"{item.at} {item.id}".casefold())
        ]
        kinds = sorted({item.kind for item in catalog.items})
        return self._page(
            "index.html", items=items[:500], total=len(items), complete=catalog.complete, kinds=kinds, kind=kind, q=text
        )

    def _open(self, request: Request) -> Response:
        """Redirect to the page for what a directory contains."""
        at, path = self._place(request)
        page = {"run": "run", "campaign": "campaign", "attempt": "attempt"}.get(str(kind_of(path)), "bundle")
        return RedirectResponse(address(page, at=at), 303)

    def _run(self, request: Request) -> Response:
        at, path = self._place(request)
        query = Query.of(request.query_params)
        wait = SMALL_WAIT if is_small(path) else LARGE_WAIT
        known = self._runs.get(path, wait, reload=_is_reload(request))
        view = known.result
        if view is None or (view.committed and known.changed):
            view = unchecked_view(path, (query.page - 1) * ROWS, ROWS)
        values = run_values(at, view, query, current=known.current, checked_at=known.checked_at)
        return self._page("run.html", **values)

    def _campaign(self, request: Request) -> Response:
        at, path = self._place(request)
        known = self._report(request, path)
        plots = None if known.result is None else plots_of(known.result)
        return self._page("campaign.html", at=at, plots=plots, place=path.name, **_report_values(known))

    def _report(self, request: Request, path: Path) -> Reading[CampaignReport]:
        """Return the results of a campaign, without a result while it is being read and checked."""
        known = self._campaigns.get(path, SMALL_WAIT, reload=_is_reload(request))
        hidden = known.changed and known.result is not None and known.result.committed
        return replace(known, result=None) if hidden else known

    def _flows(self, request: Request) -> Response:
        """Compare two flows of a campaign."""
        at, path = self._place(request)
        known = self._report(request, path)
        report = known.result
        if report is None:
            return self._page("campaign.html", at=at, plots=None, place=path.name, **_report_values(known))
        given = request.query_params
        show, page = given.get("show", ""), max(1, _number(given.get("page", "1")))
        found = compare_flows(report, given.get("a", ""), given.get("b", ""), show=show, page=page)
        return self._page("flows.html", at=at, found=found, show=show, **_report_values(known))

    def _attempt(self, request: Request) -> Response:
        at, path = self._place(request)
        evidence = self._evidence.open(path)
        first = _number(request.query_params.get("from", "0"))
        values = {
            "at": at,
            "evidence": evidence,
            "attempt": read_attempt(evidence),
            "timeline": read_timeline(evidence, first),
            "run_at": os.path.dirname(os.path.dirname(at)) if "/attempts/" in f"/{at}" else None,
            "fork_command": partial(fork_command, evidence),
            "bundle": "",
            "notes": notes_of(path),
            "others": _other_attempts(at, path),
            "form_token": self._access.session.form_token,
            **attempt_texts(evidence),
        }
        return self._page("attempt.html", **values)

    def _bundle(self, request: Request) -> Response:
        at, path = self._place(request)
        kind = str(kind_of(path))
        others = _other_plan_runs(at, path) if kind == "plan_run" else []
        return self._page("bundle.html", at=at, others=others, **bundle_values(self._evidence.open(path), kind))

    def _compare(self, request: Request) -> Response:
        """Compare two attempts step by step, or two plan runs."""
        places = [(name, place_of(self._root, request.query_params.get(name, "."))) for name in ("a", "b")]
        at = [os.path.relpath(path, self._root) for _, path in places]
        kinds = {kind_of(path) for _, path in places}
        if kinds == {"plan_run"}:
            found = compare_plan_runs(places[0][1], places[1][1])
            return self._page("compare_plans.html", at=at, found=found)
        if kinds != {"attempt"}:
            raise NotFoundError("two attempts, or two plan runs, can be compared", op="view")
        both = [self._evidence.open(path) for _, path in places]
        sides = [
            {"at": each, "evidence": one, "attempt": read_attempt(one)} for each, one in zip(at, both, strict=True)
        ]
        return self._page("compare.html", sides=sides, found=compare_attempts(*both))

    async def _annotate(self, request: Request) -> Response:
        """Store a note beside the evidence: from our own page, with its token, and never in the bundle."""
        form = await _form(request)
        ours = is_from_our_page(request, f"{request.url.scheme}://{request.headers.get('host', '')}")
        signed_in = self._access.has_session(request) and has_token(self._access.session, form.get("token", ""))
        if not ours or not signed_in:
            return self._message("Refused", "The form was not sent from a page of this viewer.", 403)
        try:
            path = await anyio.to_thread.run_sync(place_of, self._root, form.get("at", "."))
            step = _number(form.get("step", "")) or None
            add = partial(add_note, path, form.get("text", ""), step=step, tags=form.get("tags", ""))
            await anyio.to_thread.run_sync(add)
            at = str(path.relative_to(self._root))
        except ProofboxError as error:
            return self._problem(error, 400)
        except OSError as error:
            return self._message("Not stored", f"The note cannot be stored: {error.strerror}", 400)
        return RedirectResponse(self._access.session.path + address("open", at=at), 303)

    # Fragments, which htmx puts into a page; without a script, they are pages

    def _fragment(self, request: Request, template: str, title: str, **values: Any) -> Response:
        inner = self._renderer.render(template, **values)
        if request.headers.get("hx-request") == "true":
            return HTMLResponse(inner)
        return self._page("fragment.html", title=title, inner=inner, at=values.get("at", ""))

    def _timeline(self, request: Request) -> Response:
        at, path = self._place(request)
        evidence = self._evidence.open(path)
        page = read_timeline(evidence, _number(request.query_params.get("from", "0")))
        values = {"timeline": page, "fork_command": partial(fork_command, evidence), "bundle": ""}
        return self._fragment(request, "_timeline.html", "Timeline", at=at, **values)

    def _output(self, request: Request) -> Response:
        at, path = self._place(request)
        evidence = self._evidence.open(path)
        sha256, start = request.query_params.get("sha256", ""), _number(request.query_params.get("start", "0"))
        name = output_name(sha256)
        text, end = _readable(evidence.part(name, start, MAX_TEXT), start, evidence.size(name))
        values = {"text": text, "start": start, "end": end, "size": evidence.size(name), "page": "output"}
        return self._fragment(request, "_text.html", "Output", at=at, more={"sha256": sha256}, kind="text", **values)

    def _diff(self, request: Request) -> Response:
        at, path = self._place(request)
        evidence = self._evidence.open(path)
        step, start = _number(request.query_params.get("step", "0")), _number(request.query_params.get("start", "0"))
        found = find_step(evidence, step) if step else None
        part, size = diff_part(evidence, found, start)
        text, end = _readable(part, start, size)
        omitted = found.diff_omitted if found is not None else ""
        values = {"text": text or omitted, "start": start, "end": end, "size": size}
        return self._fragment(
            request,
            "_text.html",
            f"Diff of step {step}" if step else "Diff of the whole attempt",
            at=at,
            more={"step": step},
            kind="diff",
            page="diff",
            **values,
        )

    def _files(self, request: Request) -> Response:
        at, path = self._place(request)
        evidence = self._evidence.open(path)
        step = _number(request.query_params.get("step", "0"))
        tree = files_after(evidence, find_step(evidence, step).step if step else None)
        return self._fragment(request, "_files.html", f"Files {_when(step)}", at=at, tree=tree, step=step)

    def _file(self, request: Request) -> Response:
        at, path = self._place(request)
        evidence = self._evidence.open(path)
        given = request.query_params
        step, start = _number(given.get("step", "0")), _number(given.get("start", "0"))
        name, sha256 = given.get("path", ""), given.get("sha256", "")
        after = find_step(evidence, step).step if step else None
        found = file_after(evidence, after, name, sha256, start, MAX_TEXT)
        text, end = _readable(found.data, start, found.file.size)
        more = {"step": step, "path": name, "sha256": sha256}
        values = {"file": found, "when": _when(step), "text": text, "start": start, "end": end}
        title = f"{cut(name, 120)} {_when(step)}"
        return self._fragment(request, "_file.html", title, at=at, more=more, **values)

    # Live

    async def _live(self, request: Request) -> Response:
        if not self._access.has_session(request):
            return Response("not signed in", 403, media_type="text/plain")
        try:
            _, path = await anyio.to_thread.run_sync(self._place, request)
        except ProofboxError:
            return Response("not found", 404, media_type="text/plain")
        return StreamingResponse(changes(path), media_type="text/event-stream")


def _other_attempts(at: str, path: Path) -> list[tuple[str, str]]:
    """Return other attempts of the same run, those at the same mission first, as path and name."""
    if path.parent.name != "attempts":
        return []
    mission = path.name.partition(".")[0]
    with os.scandir(path.parent) as entries:
        names = [each.name for each in entries if each.is_dir(follow_symlinks=False) and each.name != path.name]
    names.sort(key=lambda name: (name.partition(".")[0] != mission, name))
    return [(f"{os.path.dirname(at)}/{name}", name) for name in names[:MAX_OTHERS]]


def _other_plan_runs(at: str, path: Path) -> list[tuple[str, str]]:
    """Return other plan runs in the same directory, the newest first, as path and name."""
    with os.scandir(path.parent) as entries:
        names = [each.name for each in entries if each.is_dir(follow_symlinks=False) and each.name != path.name]
    found = sorted((name for name in names if kind_of(path.parent / name) == "plan_run"), reverse=True)
    return [(os.path.join(os.path.dirname(at), name), name) for name in found[:MAX_OTHERS]]


def _readable(data: bytes, start: int, size: int) -> tuple[str, int]:
    """Decode a part of a file, and return where the next part starts: after its last line, or its last character."""
    end = start + len(data)
    if end < size:
        newline = data.rfind(b"\n")
        if newline > 0:
            data = data[: newline + 1]
        else:
            for _ in range(3):  # do not split a character
                if data and data[-1] & 0xC0 == 0x80:
                    data = data[:-1]
            data = data[:-1] if data and data[-1] >= 0xC0 else data
        end = start + max(1, len(data))
    return data.decode("utf-8", "replace"), end


def _when(step: int) -> str:
    return f"after step {step}" if step else "at the end"


def _report_values(known: Reading[CampaignReport]) -> dict[str, Any]:
    return {"report": known.result, "current": known.current, "checked_at": known.checked_at}


def _is_reload(request: Request) -> bool:
    """Return whether a person asks for the page, and not its script, which waits for the end of a check."""
    return "x-refresh" not in request.headers


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > 1 << 14:
            return {}
    return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=10))
