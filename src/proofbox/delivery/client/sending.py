"""Sending a call until it is answered, or makes no sense any more.

Every operation has one deadline for all its attempts. A request that failed without saying whether it was carried out
is not repeated blindly: what must happen once is first looked for.
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
    """Holds the connection to the backend, and the key that goes nowhere else."""

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
            # No redirects and no proxies or logins from the environment: the key goes to the backend, and nowhere else.
            follow_redirects=False,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()
        self._silence.end()

    async def repeated(self, call: BackendCall[T]) -> T:
        """For what changes nothing: try until it works or makes no sense any more."""
        return await self._within(call.op, partial(self._repeated, call))

    async def once(self, call: BackendCall[T], look: Callable[[int], Awaitable[T | BackendCall[T] | None]]) -> T:
        """For what must happen once: look for it first, and again whenever it may have happened.

        Looking finds the answer, nothing, or something to be completed by another call.
        """
        return await self._within(call.op, partial(self._once, call, look))

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
                        log.info("[BackendClient] op=%s attempt=%d: it is there already", call.op, attempt.num)
                        return found
                try:
                    return await self.attempt(call, attempt.num)
                except BackendConflict as conflict:
                    # Perhaps our own: of an attempt that was still under way when it was looked for.
                    found = await look(attempt.num)
                    if found is not None and not isinstance(found, BackendCall):
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

    async def attempt(self, call: BackendCall[T], number: int) -> T:
        """Send it once, and log that."""
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

    async def _send(self, call: BackendCall[Any]) -> BackendResponse | ConnectionBroken:
        """The answer, or why there is none: as a value, so that no error drags along what it was about."""
        try:
            async with self._http.stream(
                call.method, call.path, headers=call.headers(), content=_pieces(call.body) if call.body else None
            ) as response:
                return await self._received(response, call.limit)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return ConnectionBroken(f"no connection to {self._settings.url} ({_cause(error)})", sent=False)
        except httpx2.TimeoutException as error:
            return ConnectionBroken(f"no answer in time ({_cause(error)})", sent=True)
        except (httpx2.RemoteProtocolError, httpx2.DecodingError):
            return ConnectionBroken("the connection ended in the middle of an answer, or it was not HTTP", sent=True)
        except httpx2.TransportError as error:
            return ConnectionBroken(f"the connection broke ({_cause(error)})", sent=True)
        except httpx2.InvalidURL:
            hints = ["give the ids as the backend has them: --app-id, --enterprise-id"]
            raise UsageError("an id is too long to be part of an address", op=call.op, fix_hints=hints) from None

    async def _received(self, response: httpx2.Response, limit: int) -> BackendResponse | ConnectionBroken:
        good = 200 <= response.status_code < 300
        if good and response.headers.get("content-encoding", "identity") != "identity":
            return ConnectionBroken("the answer is compressed, which was not asked for", sent=True, protocol=True)
        limit = limit if good else ERROR_ANSWER
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > limit:
                if not good:
                    break
                return ConnectionBroken(f"the answer is larger than {limit} bytes", sent=True, protocol=True)
        wait = seconds_to_wait(response.headers.get("retry-after"), self._clock)
        return BackendResponse(response.status_code, bytes(body[:limit]), wait)


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


def _cause(error: Exception) -> str:
    """The kind of error alone. Its text may hold an address or bytes that came over the wire."""
    return type(error).__name__
