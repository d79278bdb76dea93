"""HTML pages: repositories, pull requests with their diffs, merge and close.

All displayed text is untrusted, so it is escaped, made visible and truncated. A browser signs in with the key and gets
a session (`sessions.py`). The address of a page is stable (`/apps/APP/pulls/1`); after signing in, it leads to the same
page below the path of the session.
"""

from __future__ import annotations

import html
import re
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from proofbox.core.text import preview, printable
from proofbox.delivery.backend.ledger import Pull
from proofbox.delivery.backend.markdown import to_html
from proofbox.delivery.backend.repositories import Repositories
from proofbox.delivery.backend.rules import BackendRefusal
from proofbox.delivery.backend.sessions import PREFIX, BrowserSession, BrowserSessions, has_token, is_from_our_page
from proofbox.delivery.backend.style import backend_style
from proofbox.delivery.client.settings import ApiKey
from proofbox.errors import RepositoryFailed

DIFF_LIMIT = 1 << 20
_MAX_FILES = 500
_MAX_FORM = 1 << 14
_MAX_FIELDS = 10
_LANDING = re.compile(r"/apps/[^/?#\\\s]{1,600}(?:/pulls/[0-9]{1,9})?")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with `no-referrer`, browsers send `Origin: null` with our own forms
    "Cache-Control": "no-store",
}
Endpoint = Callable[[Request, BrowserSession], Awaitable[Response]]


class Pages:
    def __init__(self, repositories: Repositories, key: ApiKey) -> None:
        self._repositories = repositories
        self._key = key
        self._sessions = BrowserSessions()

    def routes(self) -> list[Route]:
        home = PREFIX + "{session}/"
        app = home + "apps/{app_id}"
        pull = app + "/pulls/{number:int}"
        landing = [Route(path.removeprefix(home[:-1]), self._landing, methods=["GET"]) for path in (home, app, pull)]
        return [
            *landing,
            Route("/style.css", self._style, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route(home, self._signed_in(self._home), methods=["GET"]),
            Route(app, self._signed_in(self._app), methods=["GET"]),
            Route(pull, self._signed_in(self._pull), methods=["GET"]),
            Route(pull + "/merge", self._signed_in(self._merge), methods=["POST"]),
            Route(pull + "/close", self._signed_in(self._close), methods=["POST"]),
        ]

    async def _style(self, _: Request) -> Response:
        return Response(backend_style(), media_type="text/css", headers={"X-Content-Type-Options": "nosniff"})

    # Authentication

    def _signed_in(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            session = self._sessions.of(request)
            if session is None:
                return _sign_in_page()
            try:
                if request.method == "POST":
                    await self._check_form(request, session)
                return await endpoint(request, session)
            except (BackendRefusal, RepositoryFailed) as error:
                refusal = (
                    error
                    if isinstance(error, BackendRefusal)
                    else BackendRefusal(500, "repository_failed", error.message)
                )
                body = f'<div class="notice bad">{_text(refusal.message)}</div>'
                return _page("Refused", body, session, status=refusal.status)

        return answer

    async def _check_form(self, request: Request, session: BrowserSession) -> None:
        form = await _form(request)
        ours = is_from_our_page(request, self._repositories.url)
        if not ours or not has_token(session, form.get("token", "")):
            raise BackendRefusal(403, "not_from_here", "the form was not sent from a page of this backend")

    async def _landing(self, request: Request) -> Response:
        return _sign_in_page(next=request.scope["raw_path"].decode("ascii", "replace"))

    async def _sign_in(self, request: Request) -> Response:
        try:
            form = await _form(request)
        except BackendRefusal as refusal:
            return _sign_in_page(refusal.message, status=refusal.status)
        next = form.get("next", "")
        if not is_from_our_page(request, self._repositories.url) or not self._key.matches(form.get("key", "")):
            return _sign_in_page("The key is wrong.", next=next)
        session = self._sessions.open()
        inside = next.removeprefix("/") if _LANDING.fullmatch(next) else ""
        answer = RedirectResponse(session.path + inside, 303, _HEADERS)
        session.set_cookie(answer)
        return answer

    # Pages

    async def _home(self, _: Request, session: BrowserSession) -> Response:
        rows = []
        for repository in self._repositories.repositories():
            pulls = await anyio.to_thread.run_sync(self._repositories.pulls, repository.app)
            waiting = sum(pull.state == "open" for pull in pulls)
            badge = f'<span class="badge open">{waiting} open</span>' if waiting else ""
            rows.append(
                f'<li><a class="name" href="{session.link(repository.app)}">{_text(repository.full_name)}</a> {badge}'
                f'<div class="meta">app {_text(repository.app)} · {len(pulls)} pull requests · created '
                f"{_date(repository.created_at)}</div></li>"
            )
        empty = (
            '<div class="empty"><h2>Nothing here yet</h2><p>Deliver something: '
            "<code>proofbox deliver init --app-id APP --source DIR</code></p></div>"
        )
        return _page("Repositories", f'<ul class="list">{"".join(rows)}</ul>' if rows else empty, session)

    async def _app(self, request: Request, session: BrowserSession) -> Response:
        app = str(request.path_params["app_id"])
        manifest = await anyio.to_thread.run_sync(self._repositories.files, app)
        pulls = await anyio.to_thread.run_sync(self._repositories.pulls, app)
        listed = "".join(
            f'<li><span class="badge {pull.state}">{pull.state}</span> '
            f'<a class="name" href="{session.link(app, pull.number)}">{_text(pull.title)}</a>'
            f'<div class="meta">#{pull.number} · {_text(pull.branch)} · {_date(pull.created_at)}'
            f"{' · with evidence' if pull.evidence else ''}</div></li>"
            for pull in pulls
        )
        files = "".join(
            f'<tr><td class="path">{_text(file.path)}</td><td>{_MODES.get(file.mode or "", "")}</td>'
            f'<td class="number">{file.size_bytes}</td><td class="sha">{file.sha256[:12]}</td></tr>'
            for file in manifest.files[:_MAX_FILES]
        )
        more = len(manifest.files) - _MAX_FILES
        body = (
            f'<p class="meta"><code>git clone {_text(manifest.repo_url or "")}</code><br>'
            f"main is at <code>{_text((manifest.base_commit_sha or '')[:12])}</code></p>"
            f"<h2>Pull requests</h2>"
            + (f'<ul class="list">{listed}</ul>' if listed else '<p class="meta">None so far.</p>')
            + '<h2>Files</h2><div class="table"><table><thead><tr><th scope="col">Path</th><th scope="col">Mode</th>'
            '<th scope="col" class="number">Bytes</th><th scope="col">SHA-256</th></tr></thead>'
            f"<tbody>{files}</tbody></table></div>" + (f'<p class="meta">and {more} more</p>' if more > 0 else "")
        )
        return _page(app, body, session, crumbs=True)

    async def _pull(self, request: Request, session: BrowserSession) -> Response:
        pull = await self._found(request)
        text, cut = await anyio.to_thread.run_sync(self._repositories.diff, pull, DIFF_LIMIT)
        buttons = ""
        if pull.state == "open":
            hidden = f'<input type="hidden" name="token" value="{session.form_token}">'
            buttons = "".join(
                f'<form method="post" action="{session.link(pull.app, pull.number)}/{what}">{hidden}'
                f'<button class="{what}">{label}</button></form>'
                for what, label in (("merge", "Merge"), ("close", "Close"))
            )
        evidence = (
            '<details class="evidence"><summary>Evidence, as sent</summary>'
            f'<pre class="pane" tabindex="0" role="region" aria-label="Evidence">{_text(_evidence(pull))}</pre>'
            "</details>"
            if pull.evidence
            else '<div class="notice">Sent without evidence.</div>'
        )
        body = (
            f'<p><span class="badge {pull.state}">{pull.state}</span> '
            f'<span class="meta">#{pull.number} · {_text(pull.branch)} into main · by {_text(pull.user)} · '
            f"{_date(pull.created_at)}</span></p>"
            f'<div class="actions">{buttons}</div>'
            f'<div class="body">{to_html(pull.body)}</div>{evidence}<h2>Changes</h2>'
            f"{_diff(text)}" + ('<p class="notice">The diff is longer and was truncated here.</p>' if cut else "")
        )
        return _page(pull.title, body, session, crumbs=True, app=pull.app)

    async def _merge(self, request: Request, session: BrowserSession) -> Response:
        return await self._act(request, session, self._repositories.merge)

    async def _close(self, request: Request, session: BrowserSession) -> Response:
        return await self._act(request, session, self._repositories.close_pull)

    async def _act(self, request: Request, session: BrowserSession, act: Callable[[str, int], Pull]) -> Response:
        app, number = str(request.path_params["app_id"]), int(request.path_params["number"])
        await anyio.to_thread.run_sync(act, app, number)
        return RedirectResponse(session.link(app, number), 303, _HEADERS)

    async def _found(self, request: Request) -> Pull:
        app, number = str(request.path_params["app_id"]), int(request.path_params["number"])
        return await anyio.to_thread.run_sync(self._repositories.pull, app, number)


_LOGO = (
    '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M12 2 21 7v10l-9 5-9-5V7z"/><path d="m8 12 3 3 5-6"/></svg>'
)
_MODES = {"100755": "executable", "120000": "link"}
_SIGN_IN = (
    '<form class="sign-in" method="post" action="/sign-in"><label>The backend\'s key (INTERNAL_API_KEY)'
    '<input type="password" name="key" autocomplete="current-password" autofocus required></label>'
    '<input type="hidden" name="next" value="{}"><button>Sign in</button></form>'
)


def _sign_in_page(problem: str = "", *, next: str = "", status: int = 401) -> Response:
    notice = f'<div class="notice bad">{_text(problem)}</div>' if problem else ""
    return _page("Sign in", notice + _SIGN_IN.format(_text(next)), status=status)


def _page(
    title: str,
    body: str,
    session: BrowserSession | None = None,
    *,
    status: int = 200,
    crumbs: bool = False,
    app: str | None = None,
) -> Response:
    home = "/" if session is None else session.link()
    above = f'<a href="{home}">Repositories</a>' if crumbs else ""
    if session is not None and app is not None:
        above += f'<a href="{session.link(app)}">{_text(app)}</a>'
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(preview(title, 200)[0])} · proofbox</title>"
        '<link rel="stylesheet" href="/style.css"></head><body>'
        f'<header class="top"><a class="brand" href="{home}">{_LOGO}proofbox</a>'
        f'<nav class="crumbs" aria-label="Breadcrumbs"><span>reference backend</span>{above}</nav></header>'
        f"<main><h1>{_text(preview(title, 200)[0])}</h1>{body}</main></body></html>",
        status,
        _HEADERS,
    )


def _text(value: str) -> str:
    """Escape untrusted text for a page, including characters that hide or reorder text."""
    return html.escape(printable(value), quote=True)


def _diff(text: str) -> str:
    """Render a diff with one element per line, by the kind of line."""
    lines = []
    for line in text.split("\n"):
        kind = "file" if line.startswith("diff --git") else "hunk" if line.startswith("@@") else ""
        if not kind and line[:1] in "+-" and line and not line.startswith(("+++", "---")):
            kind = "add" if line[0] == "+" else "del"
        shown = _text(preview(line, 2000)[0]) or " "
        lines.append(f'<span class="{kind}">{shown}</span>' if kind else f"<span>{shown}</span>")
    return f'<pre class="pane diff" tabindex="0" role="region" aria-label="Changes">{"".join(lines)}</pre>'


def _evidence(pull: Pull) -> str:
    return msgspec.json.format(pull.evidence or b"{}", indent=2).decode("utf-8", "replace")


def _date(moment: str) -> str:
    return f'<time datetime="{_text(moment)}">{_text(moment[:16].replace("T", " "))} UTC</time>'


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MAX_FORM:
            raise BackendRefusal(413, "too_large", "the form is too large")
    try:
        return dict(parse_qsl(body.decode("ascii", "replace"), max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise BackendRefusal(422, "form_invalid", f"the form has more than {_MAX_FIELDS} fields") from None
