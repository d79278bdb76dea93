"""Send a call, with retries.

Each operation has one deadline for all its attempts. After an ambiguous failure, a request that must be carried out
only once is not simply retried: the client first checks whether it was carried out.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

import anyio
import httpx2
import stamina
from anyio.to_thread import run_sync

from proofbox.core.clock import Clock, SystemClock
from proofbox.delivery.client.body import Body
from proofbox.delivery.client.calls import (
    ERROR_ANSWER,
    BackendCall,
    BackendResponse,
    ConnectionBroken,
    error_for,
    is_ambiguous,
    may_repeat,
    parse,
    seconds_to_wait,
)
from proofbox.delivery.client.settings import BackendSettings
from proofbox.delivery.client.transport import KeyedTransport, QuietLogs
from proofbox.delivery.client.wire import PullRequestAnswer
from proofbox.errors import BackendConflict, BackendError, BackendNotFound, BackendUnreachable, UsageError

log = logging.getLogger("BackendClient")

T = TypeVar("T")


class Sender:
    """Holds the connection to the backend and the key, which is sent nowhere else."""

    def __init__(
        self, settings: BackendSettings, *, clock: Clock | None, transport: httpx2.AsyncBaseTransport | None
    ) -> None:
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self.redactor = settings.key.redactor()
        self._silence = QuietLogs(self.redactor)
        self._silence.begin()
        times = settings.timeouts
        self._http = httpx2.AsyncClient(
            base_url=settings.url,
            transport=KeyedTransport(settings.key, transport or _own_transport()),
            timeout=httpx2.Timeout(times.read, connect=times.connect),
            # No redirects, and no proxies or logins from the environment: the key must only reach the backend.
            follow_redirects=False,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()
        self._silence.end()

    async def repeated(self, call: BackendCall[T]) -> T:
        """Send a call that changes nothing, and retry it until it succeeds or cannot succeed."""
        return await self._within(call.op, partial(self._repeated, call))

    async def once(self, call: BackendCall[T], look: Callable[[int], Awaitable[T | BackendCall[T] | None]]) -> T:
        """Send a call that must be carried out only once.

        Call `look` first, and again whenever an attempt may have been carried out. It returns an existing result, None,
        or another call that completes a partial result.
        """
        return await self._within(call.op, partial(self._once, call, look))

    async def _within(self, op: str, work: Callable[[list[BackendError]], Awaitable[T]]) -> T:
        """Run an operation under its deadline. `work` appends the failures of its attempts to its argument."""
        total = self._settings.timeouts.total
        failures: list[BackendError] = []
        with anyio.move_on_after(total):
            return await work(failures)
        log.warning("[BackendClient] op=%s status=none duration_ms=%d: deadline exceeded", op, round(total * 1000))
        last = f"; before that, {failures[-1].message}" if failures else ""
        raise BackendUnreachable(
            f"{op}: no response within {total:g} s, including retries{last}",
            op=op,
            fix_hints=["check that the backend is running and responsive", "allow more time: --timeout SECONDS"],
            details={"sent": True, "timeout": total, "attempts": len(failures) + 1},
        )

    async def _repeated(self, call: BackendCall[T], failures: list[BackendError]) -> T:
        async for attempt in self._attempts(failures):
            with attempt:
                return await self.attempt(call, attempt.num)
        raise AssertionError("unreachable")  # pragma: no cover

    async def _once(
        self,
        call: BackendCall[T],
        look: Callable[[int], Awaitable[T | BackendCall[T] | None]],
        failures: list[BackendError],
    ) -> T:
        looked = doubtful = False
        async for attempt in self._attempts(failures):
            with attempt:
                if doubtful or not looked:
                    found = await look(attempt.num)
                    looked = True
                    if isinstance(found, BackendCall):
                        call = found
                    elif found is not None:
                        log.info("[BackendClient] op=%s attempt=%d: already exists", call.op, attempt.num)
                        return found
                try:
                    return await self.attempt(call, attempt.num)
                except BackendConflict as conflict:
                    # An earlier attempt may have finished after the check.
                    found = await look(attempt.num)
                    if found is not None and not isinstance(found, BackendCall):
                        return found
                    if call.answer is PullRequestAnswer and (url := conflict.details.get("pr_url")):
                        # Older backends cannot look up a branch; the conflict on our branch name is enough.
                        return cast(T, PullRequestAnswer(pr_url=url))
                    raise
                except BackendError as error:
                    # Stays set: an early ambiguous attempt may still complete.
                    doubtful = doubtful or is_ambiguous(error)
                    raise
        raise AssertionError("unreachable")  # pragma: no cover

    def _attempts(self, failures: list[BackendError]) -> AsyncIterator[stamina.Attempt]:
        retries = self._settings.retries
        return stamina.retry_context(
            on=partial(_retry_delay, failures),
            attempts=retries.attempts,
            timeout=None,
            wait_initial=retries.wait_initial,
            wait_max=retries.wait_max,
            wait_jitter=retries.wait_jitter,
        ).__aiter__()

    async def attempt(self, call: BackendCall[T], number: int) -> T:
        """Send a call once, and log the attempt."""
        began = self._clock.monotonic()
        outcome = await self._send(call)
        status = outcome.status if isinstance(outcome, BackendResponse) else None
        found: T | ConnectionBroken | None = None
        if isinstance(outcome, BackendResponse) and 200 <= outcome.status < 300:
            found = parse(call, outcome)
        refused = found if isinstance(found, ConnectionBroken) else outcome if found is None else None
        error = error_for(call, refused, number, self.redactor) if refused is not None else None
        duration = round((self._clock.monotonic() - began) * 1000)
        log.log(
            # A 404 is an expected result of a check.
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

    async def _send(self, call: BackendCall[Any]) -> BackendResponse | ConnectionBroken:
        """Return the response or the failure, as a value: an exception would keep references to the request."""
        try:
            async with self._http.stream(
                call.method, call.path, headers=call.headers(), content=_pieces(call.body) if call.body else None
            ) as response:
                return await self._received(response, call.limit)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return ConnectionBroken(f"no connection to {self._settings.url} ({_cause(error)})", sent=False)
        except httpx2.TimeoutException as error:
            return ConnectionBroken(f"the response timed out ({_cause(error)})", sent=True)
        except (httpx2.RemoteProtocolError, httpx2.DecodingError):
            return ConnectionBroken(
                "the connection was closed during the response, or the response was not HTTP", sent=True
            )
        except httpx2.TransportError as error:
            return ConnectionBroken(f"the connection failed ({_cause(error)})", sent=True)
        except httpx2.InvalidURL:
            hints = ["check --app-id and --enterprise-id"]
            raise UsageError("an id is too long for a URL", op=call.op, fix_hints=hints) from None

    async def _received(self, response: httpx2.Response, limit: int) -> BackendResponse | ConnectionBroken:
        good = 200 <= response.status_code < 300
        if good and response.headers.get("content-encoding", "identity") != "identity":
            return ConnectionBroken(
                "the response is compressed, although the request did not allow it", sent=True, protocol=True
            )
        limit = limit if good else ERROR_ANSWER
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > limit:
                if not good:
                    break
                return ConnectionBroken(f"the response is larger than {limit} bytes", sent=True, protocol=True)
        wait = seconds_to_wait(response.headers.get("retry-after"), self._clock)
        return BackendResponse(response.status_code, bytes(body[:limit]), wait)


def _own_transport() -> httpx2.AsyncBaseTransport:
    """Return a transport that verifies certificates against the system's trust store, or SSL_CERT_FILE."""
    return httpx2.AsyncHTTPTransport(verify=ssl.create_default_context(), trust_env=False)


async def _pieces(body: Body) -> AsyncIterator[bytes]:
    """Yield the body. Its files are read in a worker thread, since a disk may be slow."""
    pieces = body.pieces()
    while (piece := await run_sync(next, pieces, None)) is not None:
        yield piece


def _retry_delay(failures: list[BackendError], error: Exception) -> bool | float:
    if not isinstance(error, BackendError) or not may_repeat(error):
        return False
    failures.append(error)
    wait = error.details.get("retry_after")
    if wait is None:
        return True
    # Do not wait for a retry that would be after the deadline.
    return float(wait) if anyio.current_time() + wait < anyio.current_effective_deadline() else False


def _cause(error: Exception) -> str:
    """Return only the error's type: its text may contain a URL or received bytes."""
    return type(error).__name__
