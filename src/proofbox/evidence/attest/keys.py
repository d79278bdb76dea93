"""Ed25519 keys: created, readable only by their owner, and identified by their digest.

A private key is a PKCS #8 PEM file of mode 0600; the public key is beside it as `<name>.pub`, a PEM file to share.
A key's id is the SHA-256 of its 32 public bytes.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from proofbox.core.digest import sha256_hex
from proofbox.errors import KeyInvalid
from proofbox.evidence.bundle.paths import is_inside_bundle, read_bounded, shown

MAX_KEY_BYTES = 1 << 14
_Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class PublicKey:
    key_id: str
    pem: str
    _key: Ed25519PublicKey

    def verifies(self, signature: bytes, data: bytes) -> bool:
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    public: PublicKey
    _key: Ed25519PrivateKey

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"<PrivateKey {self.public.key_id}>"


def new_key(path: _Path) -> PublicKey:
    """Create a key pair at `path` and `path`.pub. Never replaces a file, and never writes a key into a bundle."""
    place = os.fspath(path)
    refuse_inside_bundle(place)
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = _public(key.public_key())
    for name, data, mode in ((place, private, 0o600), (place + ".pub", public.pem.encode(), 0o644)):
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        except FileExistsError:
            raise _refusal(name, "already exists", "choose another name: keys are never replaced") from None
        except OSError as error:
            raise _refusal(name, f"can't be written ({error.strerror})", "check the directory") from error
        with open(fd, "wb") as stream:
            os.fchmod(fd, mode)
            stream.write(data)
            stream.flush()
            os.fsync(fd)
    return public


def load_private_key(path: _Path) -> PrivateKey:
    """Load a private key from its file. A file that other users can read is refused."""
    place = os.fspath(path)
    data = _read(place)
    mode = stat.S_IMODE(os.stat(place).st_mode)
    if mode & 0o077:
        raise _refusal(place, f"is readable by other users (mode {mode:04o})", f"restrict it: chmod 600 {shown(place)}")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _refusal(place, "is not a private key in PEM format", "create one: proofbox key new PATH") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _refusal(place, "is not an ed25519 key", "create one: proofbox key new PATH")
    return PrivateKey(_public(key.public_key()), key)


def load_public_key(path: _Path) -> PublicKey:
    """Load a public key from its file. A private key is refused: verification does not need one."""
    place = os.fspath(path)
    try:
        key = serialization.load_pem_public_key(_read(place))
    except (ValueError, UnsupportedAlgorithm):
        raise _refusal(place, "is not a public key in PEM format", "use the file that ends in .pub") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _refusal(place, "is not an ed25519 key", "use the file that ends in .pub")
    return _public(key)


def refuse_inside_bundle(place: str) -> None:
    if is_inside_bundle(os.path.dirname(os.path.realpath(place))):
        raise _refusal(place, "is inside a bundle", "keep keys outside of evidence")


def _public(key: Ed25519PublicKey) -> PublicKey:
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(sha256_hex(raw), pem.decode("ascii"), key)


def _read(place: str) -> bytes:
    try:
        return read_bounded(os.path.realpath(place), MAX_KEY_BYTES)
    except OSError as error:
        raise _refusal(place, f"can't be read ({error.strerror or error})", "check the path") from error


def _refusal(place: str, reason: str, hint: str) -> KeyInvalid:
    return KeyInvalid(f"{shown(place)} {reason}", op="key", fix_hints=[hint], details={"path": shown(place)})
