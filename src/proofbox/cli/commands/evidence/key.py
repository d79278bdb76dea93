"""`key`: the keys that sign promotion packets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from proofbox.cli import flags
from proofbox.cli.output import Document, show
from proofbox.core.text import printable
from proofbox.errors import KeyInvalid

if TYPE_CHECKING:
    from proofbox.evidence.attest.keys import PublicKey


class KeyDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.key/1"
    path: str
    key_id: str
    """The SHA-256 of the public key's 32 bytes: what signatures name it by."""
    public_key: str
    """PEM. A private key is never shown."""


def new(
    path: Annotated[Path, Parameter(help="Where the private key goes; its public half goes to PATH.pub.")],
    *,
    json: flags.Json = False,
) -> int:
    """Make an ed25519 key pair: PATH (mode 0600, for you alone) and PATH.pub (to give away).

    For example:
      proofbox key new release
    """
    from proofbox.evidence.attest.keys import new_key

    key = new_key(path)
    return _show(path, key, json, f"{path}: private, keep it\n{path}.pub: public, give it away\nkey id {key.key_id}")


def show_(
    path: Annotated[Path, Parameter(help="A public key's file, or a private key's.")], *, json: flags.Json = False
) -> int:
    """Show a key's id and its public half.

    For example:
      proofbox key show release.pub
    """
    from proofbox.evidence.attest.keys import load_private_key, load_public_key

    try:
        key = load_public_key(path)
    except KeyInvalid:
        key = load_private_key(path).public
    return _show(path, key, json, f"key id {key.key_id}\n{key.pem.strip()}")


def _show(path: Path, key: PublicKey, as_json: bool, text: str) -> int:
    document = KeyDocument(path=str(path), key_id=key.key_id, public_key=key.pem)
    show(document, lambda: printable(text), as_json=as_json)
    return 0
