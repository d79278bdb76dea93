"""Extract the uncompressed kernel from the file that a distribution installs.

For x86_64 that is a bzImage, unpacked as by the kernel's own script `extract-vmlinux`. For arm64 it is the kernel.
"""

from __future__ import annotations

import gzip
import lzma
import struct
import zlib

from proofbox.errors import ImageBuildFailed

_SETUP_SECTORS = 0x1F1
_PAYLOAD = 0x248  # payload_offset and payload_length, since version 2.08 of the boot protocol
_ARM64_MAGIC_AT = 0x38
_LZ4_LEGACY = b"\x02\x21\x4c\x18"
_MAX_SIZE = 512 << 20


def extract_vmlinux(image: bytes) -> bytes:
    """Return the ELF file in a bzImage that is compressed with LZ4, XZ or gzip."""
    try:
        offset, length = struct.unpack_from("<II", image, _PAYLOAD)
        start = (image[_SETUP_SECTORS] + 1) * 512 + offset
        payload = image[start : start + length]
        if payload.startswith(_LZ4_LEGACY):
            found = _unpack_lz4(payload[4:])
        elif payload.startswith(b"\xfd7zXZ"):
            found = lzma.LZMADecompressor().decompress(payload, _MAX_SIZE)
        else:
            found = gzip.decompress(payload[:-4])  # its size is appended
    except (struct.error, IndexError, OSError, EOFError, lzma.LZMAError) as error:
        raise ImageBuildFailed(f"the kernel can't be unpacked: {error}", op="images build") from None
    if not found.startswith(b"\x7fELF"):
        raise ImageBuildFailed("the kernel can't be unpacked: it contains no ELF file", op="images build")
    return found


def extract_arm64_image(image: bytes) -> bytes:
    """Return the kernel in the format `Image`, which may be compressed with gzip."""
    if image.startswith(b"\x1f\x8b"):
        try:
            image = zlib.decompressobj(wbits=31).decompress(image, _MAX_SIZE)
        except zlib.error as error:
            raise ImageBuildFailed(f"the kernel can't be unpacked: {error}", op="images build") from None
    if image[_ARM64_MAGIC_AT : _ARM64_MAGIC_AT + 4] != b"ARM\x64":
        raise ImageBuildFailed("the kernel can't be unpacked: it is not an arm64 Image", op="images build")
    return image


def _unpack_lz4(data: bytes) -> bytes:
    """Unpack LZ4's legacy format: blocks, each after its size. The kernel's build appends the total size."""
    out, at = bytearray(), 0
    while at + 4 < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        out += _unpack_block(data[at + 4 : at + 4 + size])
        at += 4 + size
        if len(out) > _MAX_SIZE:
            raise ImageBuildFailed("the kernel can't be unpacked: it is too large", op="images build")
    if data[at:] != struct.pack("<I", len(out)):
        raise EOFError("its size is wrong")
    return bytes(out)


def _unpack_block(block: bytes) -> bytearray:
    """Unpack one block: sequences of literal bytes and of a copy of earlier output."""
    out, at, end = bytearray(), 0, len(block)
    while at < end:
        token = block[at]
        at += 1
        literals, copied = token >> 4, (token & 15) + 4
        if literals == 15:
            while block[at] == 255:
                literals, at = literals + 255, at + 1
            literals, at = literals + block[at], at + 1
        out += block[at : at + literals]
        at += literals
        if at >= end:
            break
        distance = block[at] | block[at + 1] << 8
        at += 2
        if copied == 19:
            while block[at] == 255:
                copied, at = copied + 255, at + 1
            copied, at = copied + block[at], at + 1
        start = len(out) - distance
        if start < 0 or not distance:
            raise EOFError("a copy starts before the block")
        piece = out[start : start + copied]
        out += piece if copied <= distance else (piece * (copied // distance + 1))[:copied]
    return out
