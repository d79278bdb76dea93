"""Load the libraries that every command uses, without the parts of them that short commands never use.

pathlib and msgspec import modules that they need for single functions, such as `Path.as_uri`. Together these take a
tenth of the time of `proofbox exec -- true`. Here they are loaded when such a function is called.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType


class DeferredModule(ModuleType):
    """Stands for a module that is loaded when one of its names is used, except for the given ones."""

    def __init__(self, name: str, **given: object) -> None:
        super().__init__(name)
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # the import system asks for `__spec__` and `__path__`
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


def preload() -> None:
    """Import pathlib and msgspec.

    msgspec imports `typing_extensions` if it can, and `typing` otherwise, which has the same names since Python 3.11.
    """
    if "msgspec" not in sys.modules and "typing_extensions" not in sys.modules:
        _import_with("pathlib", DeferredModule("urllib.parse", quote_from_bytes=_quote_from_bytes))
        _import_with(
            "msgspec",
            DeferredModule("msgspec.inspect"),
            DeferredModule("platform", system=lambda: os.uname().sysname),
            DeferredModule("textwrap"),
            typing_extensions=None,
        )


def preload_dataclasses() -> None:
    """Import dataclasses without inspect, which they need only for classes without a docstring."""
    _import_with("dataclasses", DeferredModule("inspect"))


def _import_with(name: str, *deferred: DeferredModule, **absent: None) -> None:
    """Import a module while others are replaced or cannot be imported. Modules that are loaded stay as they are."""
    replaced = {each.__name__: each for each in deferred} | absent
    added = {name: module for name, module in replaced.items() if name not in sys.modules}
    sys.modules.update(added)  # type: ignore[arg-type]
    try:
        import_module(name)
    finally:
        for each in added:
            sys.modules.pop(each, None)


def _quote_from_bytes(data: bytes) -> str:
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(data)
