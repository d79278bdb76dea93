"""HTML pages: repositories, pull requests with their diffs, merge and close.

All displayed text is untrusted, so it is escaped, made visible and truncated. A browser signs in once with the key and
then holds a random token that other sites cannot use: the cookie is SameSite, and every form contains a second token
and is refused if it comes from another origin.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl, quote, urlsplit

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
from proofbox.delivery.backend.style import STYLE
from proofbox.delivery.client.settings import ApiKey
from proofbox.errors import RepositoryFailed

COOKIE = "proofbox_session"
DIFF_LIMIT = 1 << 20
_MAX_SESSIONS = 64
_MAX_FILES = 500
_MAX_FORM = 1 << 14
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Endpoint = Callable[[Request, str], Awaitable[Response]]


class Pages:
    def __init__(self, repositories: Repositories, key: ApiKey) -> None:
        self._repositories = repositories
        self._key = key
        self._sessions: list[str] = []

    def routes(self) -> list[Route]:
        app = "/apps/{app_id}"
        pull = app + "/pulls/{number:int}"
        return [
            Route("/style.css", self._style, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/", self._signed_in(self._home), methods=["GET"]),
            Route(app, self._signed_in(self._app), methods=["GET"]),
            Route(pull, self._signed_in(self._pull), methods=["GET"]),
            Route(pull + "/merge", self._signed_in(self._merge), methods=["POST"]),
            Route(pull + "/close", self._signed_in(self._close), methods=["POST"]),
        ]

    async def _style(self, _: Request) -> Response:
        return Response(STYLE, media_type="text/css", headers={"X-Content-Type-Options": "nosniff"})

    # Authentication

    def _signed_in(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            token = request.cookies.get(COOKIE, "")
            if not any(hmac.compare_digest(token.encode(), known.encode()) for known in self._sessions):
                return _page("Sign in", _SIGN_IN, status=401)
            try:
                if request.method == "POST":
                    await _check_form(request, token)
                return await endpoint(request, token)
            except (BackendRefusal, RepositoryFailed) as error:
                refusal = (
                    error
                    if isinstance(error, BackendRefusal)
                    else BackendRefusal(500, "repository_failed", error.message)
                )
                body = f'<div class="notice bad">{_text(refusal.message)}</div><p><a href="/">Repositories</a></p>'
                return _page("Refused", body, status=refusal.status)

        return answer

    async def _sign_in(self, request: Request) -> Response:
        try:
            form = await _form(request)
        except BackendRefusal as refusal:
            return _page("Sign in", _SIGN_IN, status=refusal.status)
        if not _from_here(request) or not self._key.matches(form.get("key", "")):
            wrong = '<div class="notice bad">The key is wrong.</div>'
            return _page("Sign in", wrong + _SIGN_IN, status=401)
        token = secrets.token_urlsafe(32)
        self._sessions = [*self._sessions, token][-_MAX_SESSIONS:]
        answer = RedirectResponse("/", 303, _HEADERS)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
        return answer

    # Pages

    async def _home(self, _: Request, __: str) -> Response:
        rows = []
        for repository in self._repositories.repositories():
            pulls = await anyio.to_thread.run_sync(self._repositories.pulls, repository.app)
            waiting = sum(pull.state == "open" for pull in pulls)
            badge = f'<span class="badge open">{waiting} open</span>' if waiting else ""
            rows.append(
                f'<li><a class="name" href="{_link(repository.app)}">{_text(repository.full_name)}</a> {badge}'
                f'<div class="meta">app {_text(repository.app)} · {len(pulls)} pull requests · created '
                f"{_date(repository.created_at)}</div></li>"
            )
        empty = (
            '<div class="empty"><h2>Nothing here yet</h2><p>Deliver something: '
            "<code>proofbox deliver init --app-id APP --source DIR</code></p></div>"
        )
        return _page("Repositories", f'<ul class="list">{"".join(rows)}</ul>' if rows else empty)

    async def _app(self, request: Request, _: str) -> Response:
        app = str(request.path_params["app_id"])
        manifest = await anyio.to_thread.run_sync(self._repositories.files, app)
        pulls = await anyio.to_thread.run_sync(self._repositories.pulls, app)
        listed = "".join(
            f'<li><span class="badge {pull.state}">{pull.state}</span> '
            f'<a class="name" href="{_link(app, pull.number)}">{_text(pull.title)}</a>'
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
            + f'<h2>Files</h2><table><thead><tr><th>path</th><th></th><th class="number">bytes</th><th>sha256</th>'
            f"</tr></thead><tbody>{files}</tbody></table>"
            + (f'<p class="meta">and {more} more</p>' if more > 0 else "")
        )
        return _page(app, body, crumbs=True)

    async def _pull(self, request: Request, token: str) -> Response:
        pull = await self._found(request)
        text, cut = await anyio.to_thread.run_sync(self._repositories.diff, pull, DIFF_LIMIT)
        buttons = ""
        if pull.state == "open":
            hidden = f'<input type="hidden" name="token" value="{_form_token(token)}">'
            buttons = "".join(
                f'<form method="post" action="{_link(pull.app, pull.number)}/{what}">{hidden}'
                f'<button class="{what}">{label}</button></form>'
                for what, label in (("merge", "Merge"), ("close", "Close"))
            )
        evidence = (
            '<details class="evidence"><summary>Evidence, as sent</summary>'
            f"<pre>{_text(_evidence(pull))}</pre></details>"
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
        return _page(pull.title, body, crumbs=True, app=pull.app)

    async def _merge(self, request: Request, _: str) -> Response:
        return await self._act(request, self._repositories.merge)

    async def _close(self, request: Request, _: str) -> Response:
        return await self._act(request, self._repositories.close_pull)

    async def _act(self, request: Request, act: Callable[[str, int], Pull]) -> Response:
        app, number = str(request.path_params["app_id"]), int(request.path_params["number"])
        await anyio.to_thread.run_sync(act, app, number)
        return RedirectResponse(_link(app, number), 303, _HEADERS)

    async def _found(self, request: Request) -> Pull:
        app, number = str(request.path_params["app_id"]), int(request.path_params["number"])
        return await anyio.to_thread.run_sync(self._repositories.pull, app, number)


_MODES = {"100755": "executable", "120000": "link"}
_SIGN_IN = (
    '<form class="sign-in" method="post" action="/sign-in"><label>The backend\'s key (INTERNAL_API_KEY)'
    '<input type="password" name="key" autocomplete="current-password" autofocus required></label>'
    "<button>Sign in</button></form>"
)


def _page(title: str, body: str, *, status: int = 200, crumbs: bool = False, app: str | None = None) -> Response:
    above = '<a href="/">Repositories</a>' if crumbs else ""
    if app is not None:
        above += f' / <a href="{_link(app)}">{_text(app)}</a>'
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(preview(title, 200)[0])} · proofbox</title>"
        '<link rel="stylesheet" href="/style.css"></head><body>'
        '<header><a class="brand" href="/">proofbox</a> <span>reference backend</span></header>'
        f"<main><nav>{above}</nav><h1>{_text(preview(title, 200)[0])}</h1>{body}</main></body></html>",
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
    return f'<pre class="diff">{"".join(lines)}</pre>'


def _evidence(pull: Pull) -> str:
    return msgspec.json.format(pull.evidence or b"{}", indent=2).decode("utf-8", "replace")


def _link(app: str, number: int | None = None) -> str:
    place = f"/apps/{quote(app, safe='')}"
    return place if number is None else f"{place}/pulls/{number}"


def _date(moment: str) -> str:
    return f'<time datetime="{_text(moment)}">{_text(moment[:16].replace("T", " "))} UTC</time>'


def _form_token(session: str) -> str:
    return hashlib.sha256(f"form of {session}".encode()).hexdigest()


def _from_here(request: Request) -> bool:
    """Return whether the form came from our pages; browsers send the origin of a form."""
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


async def _check_form(request: Request, session: str) -> None:
    form = await _form(request)
    right = hmac.compare_digest(form.get("token", "").encode(), _form_token(session).encode())
    if not right or not _from_here(request):
        raise BackendRefusal(403, "not_from_here", "the form was not sent from a page of this backend")


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MAX_FORM:
            raise BackendRefusal(413, "too_large", "the form is too large")
    return dict(parse_qsl(body.decode("ascii", "replace"), max_num_fields=10))
