"""A fake of the parts of Apple's Foundation that apple-vm uses, through pyobjc."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

NSDefaultRunLoopMode = "kCFRunLoopDefaultMode"
main_queue: queue.Queue[Callable[[], None]] = queue.Queue()


class NSObject:
    """Objects are made as in Objective-C: `alloc`, then an initializer."""

    @classmethod
    def alloc(cls) -> Any:
        return cls.__new__(cls)

    def init(self) -> Any:
        return self


class NSURL:
    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def fileURLWithPath_(cls, path: str) -> NSURL:
        assert path.startswith("/")
        return cls(path)


class NSFileHandle(NSObject):
    descriptor: int

    def initWithFileDescriptor_(self, descriptor: int) -> NSFileHandle:
        self.descriptor = descriptor
        return self


class NSError:
    def __init__(self, text: str) -> None:
        self.text = text

    def localizedDescription(self) -> str:
        return self.text


class NSDate:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @classmethod
    def dateWithTimeIntervalSinceNow_(cls, seconds: float) -> NSDate:
        return cls(seconds)


class NSRunLoop:
    @classmethod
    def currentRunLoop(cls) -> NSRunLoop:
        return cls()

    def runMode_beforeDate_(self, mode: str, date: NSDate) -> bool:
        assert mode == NSDefaultRunLoopMode
        try:
            main_queue.get(timeout=date.seconds)()
        except queue.Empty:
            return False
        return True
