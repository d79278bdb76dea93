"""Parse JSON that may be damaged or hostile. Every failure is a `msgspec.DecodeError`.

For text that is not UTF-8 and for values nested too deeply, `msgspec` raises errors of other kinds.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def parse_json(data: bytes | str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except UnicodeError:
        raise msgspec.DecodeError("the document is not UTF-8") from None
    except RecursionError:
        raise msgspec.DecodeError("the document is nested too deeply") from None
