"""`AsyncBackendClient`: the backend's four operations.

Every operation has one deadline for all its attempts. A request that failed without saying whether it was carried out
is not repeated blindly: an export or a pull request is first looked for, so that it is made once even by a backend
that ignores idempotency keys.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import anyio
import httpx2
import msgspec
import stamina

from proofbox.core.clock import Clock, SystemClock
from proofbox.core.digest import digest_of
from proofbox.delivery.body import Body, Content, export_body, pull_request_body
from proofbox.delivery.calls import (
    ERROR_ANSWER,
    MANIFEST_ANSWER,
    Answer,
    Broken,
    Call,
    api_path,
    error_for,
    is_ambiguous,
    may_repeat,
    parse,
    refuse_login,
    seconds_to_wait,
)
from proofbox.delivery.settings import BackendSettings
from proofbox.delivery.transport import KeyedTransport, QuietLogs
from proofbox.delivery.wire import (
    AppSpec,
    ExportAnswer,
    FileChange,
    InitialExport,
    ManifestRequest,
    PullRequest,
    PullRequestAnswer,
    RepoManifest,
)
from proofbox.errors import (
    BackendConflict,
    BackendError,
    BackendNotFound,
    BackendRejected,
    BackendUnreachable,
)

log = logging.getLogger("BackendClient")

T = TypeVar("T")
Change = tuple[FileChange, Content | None]


class AsyncBackendClient:
    """Use it in an `async with`. Raises the BackendErrors of `proofbox.errors`, each with advice."""

    def __init__(
        self,
        settings: BackendSettings,
        *,
        clock: Clock | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._redactor = settings.key.redactor()
        self._silence = QuietLogs(self._redactor)
        self._silence.begin()
        times = settings.timeouts
        self._http = httpx2.AsyncClient(
            base_url=settings.url,
            transport=KeyedTransport(settings.key, transport or _own_transport()),
            timeout=httpx2.Timeout(times.read, connect=times.connect),
            # No redirects and no proxies or logins from the environment: the key goes to the backend, and nowhere else.
            follow_redirects=False,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()
        self._silence.end()

    # The operations

    async def get_app_spec(self, enterprise_id: str, *, app_id: str | None = None) -> AppSpec:
        """What the app is. `app_id` matters where an enterprise has several; an older backend ignores it."""
        path = api_path("api", "enterprises", enterprise_id, "appgen", "spec")
        query = f"?{httpx2.QueryParams({'appId': app_id})}" if app_id else ""
        ids = {"enterprise_id": enterprise_id, "app_id": app_id}
        call = Call("get_app_spec", "GET", path + query, AppSpec, ids=ids)
        found = await self._within("get_app_spec", partial(self._repeated, call))
        # A spec never holds secrets. One that does is read without them.
        return msgspec.convert(self._redactor.redact_json(msgspec.to_builtins(found)), AppSpec)

    async def get_repo_manifest(
        self, app_id: str, *, user_id: str, repo_url: str | None = None, branch_name: str | None = None
    ) -> RepoManifest:
        """Which files the app's repository has, by digest."""
        refuse_login(repo_url)
        asked = ManifestRequest(repo_url=repo_url, user_id=user_id, branch_name=branch_name)
        return await self._within("get_repo_manifest", partial(self._repeated, _manifest_call(app_id, asked)))

    async def initial_export(self, app_id: str, export: InitialExport, files: Sequence[Content]) -> ExportAnswer:
        """Make the app's repository of these files. One that holds exactly these already is the answer too."""
        refuse_login(export.repo_url)
        find = partial(self._find_export, app_id, export, files)
        call = _export_call(app_id, export, files)
        answer = await self._within("initial_export", partial(self._once, call, find))
        if not answer.success:
            raise BackendRejected(
                "initial_export: the backend says that it did not succeed, and not why",
                op="initial_export",
                fix_hints=["look into the backend's log"],
            )
        return answer

    async def create_pull_request(self, app_id: str, pull: PullRequest, changes: Sequence[Change]) -> PullRequestAnswer:
        """Propose these changes on a branch of that name. One that is there already is the answer too."""
        refuse_login(pull.repo_url)
        what = [msgspec.to_builtins(change) for change, _ in changes]
        key = pull.idempotency_key or _key("pull-request", app_id, pull.branch_name, pull.base_commit_sha, what)
        pull = msgspec.structs.replace(pull, idempotency_key=key)
        call = Call(
            "create_pull_request",
            "POST",
            api_path("api", "apps", app_id, "deploy", "repo", "pull-requests"),
            PullRequestAnswer,
            body=pull_request_body(pull, changes),
            idempotency_key=key,
            ids={"app_id": app_id, "repo_url": pull.repo_url},
        )
        find = partial(self._find_pull_request, app_id, pull)
        return await self._within("create_pull_request", partial(self._once, call, find))

    # Looking for what may be there already

    async def _find_export(
        self, app_id: str, export: InitialExport, files: Sequence[Content], attempt: int
    ) -> ExportAnswer | Call[ExportAnswer] | None:
        try:
            asked = ManifestRequest(repo_url=export.repo_url, user_id=export.user_id)
            found = await self._attempt(_manifest_call(app_id, asked), attempt)
        except BackendNotFound:
            return None
        url = found.repo_url or export.repo_url
        if found.base_commit_sha is None and not found.files:
            # Made, and then something broke: it is to be filled, not made again.
            into = msgspec.structs.replace(export, create_repo=False, repo_url=url)
            return _export_call(app_id, into, files) if url else None
        if {each.path: each.sha256 for each in found.files} != {each.path: each.sha256 for each in files}:
            raise BackendConflict(
                f"initial_export: the app {app_id!r} has a repository already, with other files in it",
                op="initial_export",
                fix_hints=["propose the changes: proofbox deliver pr", "see them first: proofbox deliver plan"],
                details={"repo_url": found.repo_url, "base_commit_sha": found.base_commit_sha},
            )
        name = found.repo_full_name or export.repo_name or ""
        return ExportAnswer(
            success=True, repo_url=url or "", repo_full_name=name, base_commit_sha=found.base_commit_sha or ""
        )

    async def _find_pull_request(self, app_id: str, pull: PullRequest, attempt: int) -> PullRequestAnswer | None:
        try:
            asked = ManifestRequest(repo_url=pull.repo_url, user_id=pull.user_id, branch_name=pull.branch_name)
            found = await self._attempt(_manifest_call(app_id, asked), attempt)
        except BackendNotFound:
            return None
        if found.branch_name != pull.branch_name or found.pr_url is None:
            return None  # an older backend, which speaks of its main branch: it can't be asked
        if found.pr_state in ("merged", "closed"):
            raise BackendConflict(
                f"create_pull_request: these changes were proposed before, and that was {found.pr_state}",
                op="create_pull_request",
                fix_hints=["propose them on another branch: --branch NAME", "or reopen the old one"],
                details={"pr_url": found.pr_url, "state": found.pr_state},
            )
        return PullRequestAnswer(pr_url=found.pr_url, branch_name=found.branch_name, state=found.pr_state)

    # Attempts

    async def _within(self, op: str, work: Callable[[list[BackendError]], Awaitable[T]]) -> T:
        """One deadline for an operation, whatever it does. `work` notes the failures of its attempts."""
        total = self._settings.timeouts.total
        failures: list[BackendError] = []
        with anyio.move_on_after(total):
            return await work(failures)
        log.warning("[BackendClient] op=%s status=none duration_ms=%d: out of time", op, round(total * 1000))
        last = f"; before that, {failures[-1].message}" if failures else ""
        raise BackendUnreachable(
            f"{op}: no answer within {total:g} s, all attempts together{last}",
            op=op,
            fix_hints=["check that the backend runs, and how long it takes", "give it more time: --timeout"],
            details={"sent": True, "timeout": total, "attempts": len(failures) + 1},
        )

    async def _repeated(self, call: Call[T], failures: list[BackendError]) -> T:
        """For what changes nothing: try until it works or makes no sense any more."""
        async for attempt in self._attempts(failures):
            with attempt:
                return await self._attempt(call, attempt.num)
        raise AssertionError("unreachable")  # pragma: no cover

    async def _once(
        self, call: Call[T], look: Callable[[int], Awaitable[T | Call[T] | None]], failures: list[BackendError]
    ) -> T:
        """For what must happen once: look for it first, and again whenever it may have happened.

        Looking finds the answer, nothing, or something to be completed by another call.
        """
        looked = doubtful = False
        async for attempt in self._attempts(failures):
            with attempt:
                if doubtful or not looked:
                    found = await look(attempt.num)
                    looked = True
                    if isinstance(found, Call):
                        call = found
                    elif found is not None:
                        log.info("[BackendClient] op=%s attempt=%d: it is there already", call.op, attempt.num)
                        return found
                try:
                    return await self._attempt(call, attempt.num)
                except BackendConflict as conflict:
                    # Perhaps our own: of an attempt that was still under way when it was looked for.
                    found = await look(attempt.num)
                    if found is not None and not isinstance(found, Call):
                        return found
                    if call.answer is PullRequestAnswer and (url := conflict.details.get("pr_url")):
                        # An older backend can't be asked for a branch; that ours is taken says it all.
                        return cast(T, PullRequestAnswer(pr_url=url))
                    raise
                except BackendError as error:
                    # Once in doubt, always: what an early attempt has begun may still end.
                    doubtful = doubtful or is_ambiguous(error)
                    raise
        raise AssertionError("unreachable")  # pragma: no cover

    def _attempts(self, failures: list[BackendError]) -> AsyncIterator[stamina.Attempt]:
        retries = self._settings.retries
        return stamina.retry_context(
            on=partial(_whether_to_wait, failures),
            attempts=retries.attempts,
            timeout=None,
            wait_initial=retries.wait_initial,
            wait_max=retries.wait_max,
            wait_jitter=retries.wait_jitter,
        ).__aiter__()

    async def _attempt(self, call: Call[T], number: int) -> T:
        began = self._clock.monotonic()
        outcome = await self._send(call)
        status = outcome.status if isinstance(outcome, Answer) else None
        found: T | Broken | None = None
        if isinstance(outcome, Answer) and 200 <= outcome.status < 300:
            found = parse(call, outcome)
        refused = found if isinstance(found, Broken) else outcome if found is None else None
        error = error_for(call, refused, number, self._redactor) if refused is not None else None
        duration = round((self._clock.monotonic() - began) * 1000)
        log.log(
            # That something is not there may be all that was to be found out.
            logging.WARNING if error and not isinstance(error, BackendNotFound) else logging.INFO,
            "[BackendClient] op=%s status=%s attempt=%d duration_ms=%d%s",
            call.op,
            status or "none",
            number,
            duration,
            f" code={error.code}" if error else "",
        )
        if error is not None:
            raise error
        return cast(T, found)

    async def _send(self, call: Call[Any]) -> Answer | Broken:
        """The answer, or why there is none: as a value, so that no error drags along what it was about."""
        try:
            async with self._http.stream(
                call.method, call.path, headers=call.headers(), content=_pieces(call.body) if call.body else None
            ) as response:
                return await self._received(response, call.limit)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return Broken(f"no connection to {self._settings.url} ({_cause(error)})", sent=False)
        except httpx2.TimeoutException as error:
            return Broken(f"no answer in time ({_cause(error)})", sent=True)
        except (httpx2.RemoteProtocolError, httpx2.DecodingError):
            return Broken("the connection ended in the middle of an answer, or it was not HTTP", sent=True)
        except httpx2.TransportError as error:
            return Broken(f"the connection broke ({_cause(error)})", sent=True)
        except httpx2.InvalidURL:
            return Broken("an id makes no address", sent=False, protocol=True)

    async def _received(self, response: httpx2.Response, limit: int) -> Answer | Broken:
        good = 200 <= response.status_code < 300
        if good and response.headers.get("content-encoding", "identity") != "identity":
            return Broken("the answer is compressed, which was not asked for", sent=True, protocol=True)
        limit = limit if good else ERROR_ANSWER
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > limit:
                if not good:
                    break
                return Broken(f"the answer is larger than {limit} bytes", sent=True, protocol=True)
        wait = seconds_to_wait(response.headers.get("retry-after"), self._clock)
        return Answer(response.status_code, bytes(body[:limit]), wait)


def _own_transport() -> httpx2.AsyncBaseTransport:
    """Trusts what this machine trusts, or what SSL_CERT_FILE names; certificates and names are checked."""
    return httpx2.AsyncHTTPTransport(verify=ssl.create_default_context(), trust_env=False)


async def _pieces(body: Body) -> AsyncIterator[bytes]:
    for piece in body.pieces():
        yield piece


def _whether_to_wait(failures: list[BackendError], error: Exception) -> bool | float:
    if not isinstance(error, BackendError) or not may_repeat(error):
        return False
    failures.append(error)
    wait = error.details.get("retry_after")
    if wait is None:
        return True
    # Who is told to come back after the deadline need not wait for it.
    return float(wait) if anyio.current_time() + wait < anyio.current_effective_deadline() else False


def _export_call(app_id: str, export: InitialExport, files: Sequence[Content]) -> Call[ExportAnswer]:
    tree = sorted((each.path, each.mode, each.sha256) for each in files)
    key = export.idempotency_key
    if key is None or not export.create_repo:
        key = _key("initial-export", app_id, export.create_repo, export.repo_name, [list(each) for each in tree])
    return Call(
        "initial_export",
        "POST",
        api_path("api", "apps", app_id, "deploy", "repo", "initial-export"),
        ExportAnswer,
        body=export_body(msgspec.structs.replace(export, idempotency_key=key), files),
        idempotency_key=key,
        ids={"app_id": app_id, "repo_url": export.repo_url},
    )


def _manifest_call(app_id: str, asked: ManifestRequest) -> Call[RepoManifest]:
    return Call(
        "get_repo_manifest",
        "POST",
        api_path("api", "apps", app_id, "deploy", "repo", "manifest"),
        RepoManifest,
        body=Body.of(asked),
        idempotency_key=_key("manifest", app_id, msgspec.to_builtins(asked)),
        ids={"app_id": app_id, "repo_url": asked.repo_url, "branch_name": asked.branch_name},
        limit=MANIFEST_ANSWER,
    )


def _cause(error: Exception) -> str:
    """The kind of error alone. Its text may hold an address or bytes that came over the wire."""
    return type(error).__name__


def _key(*parts: Any) -> str:
    """The same for the same request, whoever sends it and however often."""
    return "pb-" + digest_of(list(parts))[:40]
