"""The uncompressed kernel is extracted from a distribution's file, whichever of the usual formats compresses it."""

from __future__ import annotations

import gzip
import lzma
import struct

import pytest

from proofbox.errors import ImageBuildFailed
from proofbox.sandbox.machines.vmlinux import extract_arm64_image, extract_vmlinux

ARM64_IMAGE = b"MZ" + bytes(0x36) + b"ARM\x64" + b"code"
KERNEL = b"\x7fELF" + b"abcdefgh" * 40 + bytes(600) + b"end"


def bzimage(payload: bytes) -> bytes:
    head = bytearray(2 * 512)
    head[0x1F1] = 1
    struct.pack_into("<II", head, 0x248, 16, len(payload))
    return bytes(head) + bytes(16) + payload


def lz4_block(data: bytes) -> bytes:
    """Return a block with long literals, a copy that overlaps itself, and final literals."""
    start, period = data[:12], 8  # "\x7fELF" and the first eight letters
    copied = 312
    first = bytes([0xCF]) + start + struct.pack("<H", period)  # 12 literals, then a copy of 4 + 15 + … bytes
    rest = copied - 19
    first += b"\xff" * (rest // 255) + bytes([rest % 255])
    tail = data[len(start) + copied :]
    length = len(tail) - 15
    return first + bytes([0xF0]) + b"\xff" * (length // 255) + bytes([length % 255]) + tail


def lz4(data: bytes) -> bytes:
    block = lz4_block(data)
    return b"\x02\x21\x4c\x18" + struct.pack("<I", len(block)) + block + struct.pack("<I", len(data))


@pytest.mark.parametrize(
    "payload",
    [lz4(KERNEL), lzma.compress(KERNEL), gzip.compress(KERNEL) + struct.pack("<I", len(KERNEL))],
    ids=["lz4", "xz", "gzip"],
)
def test_kernel_is_extracted(payload: bytes) -> None:
    assert extract_vmlinux(bzimage(payload)) == KERNEL


@pytest.mark.parametrize(
    "image",
    [b"", b"MZ" + bytes(1000), bzimage(b"?" * 50), bzimage(lz4(KERNEL)[:60]), bzimage(lzma.compress(b"no ELF file"))],
    ids=["empty", "short", "unknown", "torn", "no-elf"],
)
def test_other_files_are_refused(image: bytes) -> None:
    with pytest.raises(ImageBuildFailed, match="can't be unpacked"):
        extract_vmlinux(image)


@pytest.mark.parametrize("file", [ARM64_IMAGE, gzip.compress(ARM64_IMAGE)], ids=["plain", "gzip"])
def test_arm64_kernel_is_extracted(file: bytes) -> None:
    assert extract_arm64_image(file) == ARM64_IMAGE


@pytest.mark.parametrize(
    "file",
    [b"", b"MZ\0\0zimg" + bytes(100), gzip.compress(b"other"), b"\x1f\x8bnot gzip"],
    ids=["empty", "self-extracting", "other", "damaged"],
)
def test_other_files_are_refused_for_arm64(file: bytes) -> None:
    with pytest.raises(ImageBuildFailed, match="can't be unpacked"):
        extract_arm64_image(file)
