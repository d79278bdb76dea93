"""Downloads that resume after an interruption, and are kept only if their digest matches.

The bytes received so far are in `<sha256>.part` in the same directory, with the ETag of that version of the file. With
`If-Range`, a server that now has another version sends it from the start. Without an ETag the download is resumed as
well: if the pieces are of two versions, the digest does not match, and the download starts over once.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from proofbox.core.digest import sha256_file
from proofbox.core.files.atomic import write_document
from proofbox.errors import DownloadFailed, ImageCorrupt, ImageUnavailable

OnProgress = Callable[[int, int | None], None]
"""Called with the number of bytes received and the total, if known."""

CHUNK = 256 << 10
SILENCE = 30.0  # seconds without data until the connection counts as lost
MAX_SIZE = 32 << 30
FRUITLESS, TRIES = 5, 200  # maximum tries in a row without new bytes, and in total
_RANGE = re.compile(r"bytes (\d+)-\d*/(\d+|\*)")


class _Cut(Exception):
    """The response ended early, or the server could not be reached: try again."""


def download(
    url: str,
    sha256: str,
    into: Path,
    *,
    size: int | None = None,
    on_progress: OnProgress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Download the file with this digest to `into`; return False if it exists already. Locked against other processes.

    Raises `ImageCorrupt` when the digest does not match (nothing is kept), `ImageUnavailable` when the server does not
    have the file, and `DownloadFailed` when it was not received in full: the next call resumes it.
    """
    with _part(into) as part:
        if into.exists():
            return False
        fetch = _Fetch(url, into, part, size, on_progress)
        pieces = fetch.fetch_all(sleep)
        found, length = sha256_file(part.fileno())
        if found != sha256 and pieces:  # the pieces may be of two versions: try again in one piece
            fetch.restart()
            fetch.fetch_all(sleep)
            found, length = sha256_file(part.fileno())
        fetch.forget_version()
        if found != sha256:
            _part_of(into).unlink(missing_ok=True)
            raise ImageCorrupt(
                f"{url} is not the image that was asked for: its sha256 is {found}, not {sha256}",
                op="images pull",
                fix_hints=["don't use it; if its publisher has replaced it, check the new digest and change the entry"],
                details={"url": url, "expected": sha256, "found": found, "size": length},
            )
        os.fsync(part.fileno())
        os.replace(_part_of(into), into)
        return True


class _Fetch:
    def __init__(self, url: str, into: Path, part: BinaryIO, size: int | None, on_progress: OnProgress | None) -> None:
        self._url = url
        self._part = part
        self._version = into.with_suffix(".version")
        self._size = size
        self._on_progress = on_progress

    def fetch_all(self, sleep: Callable[[float], None]) -> bool:
        """Send requests until the file is complete; return whether it came in more than one piece."""
        fruitless = 0
        for _ in range(TRIES):
            before = self._received()
            try:
                return self._once()
            except _Cut as cut:
                fruitless = 0 if self._received() > before else fruitless + 1
                if fruitless == FRUITLESS:
                    raise self._failed(str(cut)) from None
                sleep(min(5.0, 0.1 * 2**fruitless))
        raise self._failed(f"the connection was lost {TRIES} times")

    def restart(self) -> None:
        self._part.truncate(0)
        self.forget_version()

    def forget_version(self) -> None:
        self._version.unlink(missing_ok=True)

    def _once(self) -> bool:
        """Send one request and read the response to its end; return whether it resumed an earlier one."""
        have = self._received()
        with self._ask(have) as answer:
            if answer is None:
                return True
            total = self._begin(answer, have)
            resumed = self._received() > 0
            if max(total or 0, self._size or 0) > MAX_SIZE:
                raise self._failed(f"it has {total or self._size} bytes, more than {MAX_SIZE >> 30} GiB")
            while data := _read(answer):
                self._write(data, total)
            if self._received() < (total or self._size or 0):
                raise _Cut(f"the connection was lost at {self._received()} of {total or self._size} bytes")
            return resumed

    @contextlib.contextmanager
    def _ask(self, have: int) -> Iterator[http.client.HTTPResponse | None]:
        """Request the rest of the file; yield None if the server says that it is complete."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "proofbox"}
        if have:
            headers["Range"] = f"bytes={have}-"
            with contextlib.suppress(OSError):
                headers["If-Range"] = self._version.read_text()
        request = urllib.request.Request(self._url, headers=headers)  # noqa: S310 (the catalogue allows only http(s))
        try:
            answer = urllib.request.urlopen(request, timeout=SILENCE)  # noqa: S310
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{have}":
                    yield None
                    return
                if error.code == 416:  # the server now has a shorter file
                    self.restart()
                    raise _Cut("the server's file is shorter than the part that was received before") from None
                if error.code in (408, 425, 429) or error.code >= 500:
                    raise _Cut(f"the server answered {error.code}") from None
                raise ImageUnavailable(
                    f"{self._url} is not available: the server answered {error.code} {error.reason}",
                    op="images pull",
                    fix_hints=["check the entry's url"],
                    details={"url": self._url, "status": error.code},
                ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _Cut(f"no connection: {getattr(error, 'reason', error)}") from None
        with answer:
            if urllib.parse.urlsplit(answer.url).scheme not in ("http", "https"):
                raise self._failed("it was redirected to an address that is not http(s)")
            yield answer

    def _begin(self, answer: http.client.HTTPResponse, have: int) -> int | None:
        """Resume or start over, depending on the response; return the total number of bytes, if known."""
        if answer.status == 206:
            place = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if place is None or int(place[1]) != have:
                self.restart()
                raise _Cut("the server sent a different range than the requested one")
            return None if place[2] == "*" else int(place[2])
        self.restart()
        version = answer.headers.get("ETag", "")
        if version.startswith('"'):  # a weak ETag (W/"…") does not guarantee the same bytes
            write_document(self._version, version.encode("latin-1", "replace"))
        return None if answer.length is None else answer.length

    def _write(self, data: bytes, total: int | None) -> None:
        have = self._received() + len(data)
        if have > (self._size or MAX_SIZE):
            self.restart()
            raise ImageCorrupt(
                f"{self._url} is not the image that was asked for: it has more than {self._size or MAX_SIZE} bytes",
                op="images pull",
                fix_hints=["don't use it; check the entry's size and digest"],
                details={"url": self._url, "expected_size": self._size},
            )
        view = memoryview(data)
        while view:
            view = view[self._part.write(view) :]
        if self._on_progress is not None:
            self._on_progress(have, total or self._size)

    def _received(self) -> int:
        return self._part.seek(0, os.SEEK_END)

    def _failed(self, why: str) -> DownloadFailed:
        return DownloadFailed(
            f"{self._url} could not be downloaded: {why}",
            op="images pull",
            details={"url": self._url, "have": self._received()},
        )


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _Cut(f"the connection was lost: {error or type(error).__name__}") from None


def _part_of(into: Path) -> Path:
    return into.with_suffix(".part")


@contextlib.contextmanager
def _part(into: Path) -> Iterator[BinaryIO]:
    """Open the file of the bytes received so far, locked against other processes."""
    while True:
        with open(_part_of(into), "ab+", buffering=0) as part:
            fcntl.flock(part, fcntl.LOCK_EX)
            if os.fstat(part.fileno()).st_nlink == 0:  # the previous holder removed it
                continue
            try:
                yield part
            finally:
                if _is(part, _part_of(into)) and (into.exists() or not part.seek(0, os.SEEK_END)):
                    _part_of(into).unlink(missing_ok=True)
            return


def _is(part: BinaryIO, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(part.fileno()), path.stat())
    return False
