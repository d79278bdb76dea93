"""`key`: the keys that sign promotion packets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from proofbox.cli import flags
from proofbox.cli.output import Document, show
from proofbox.cli.parameters import Parameter
from proofbox.core.text import printable
from proofbox.errors import KeyInvalid

if TYPE_CHECKING:
    from proofbox.evidence.attest.keys import PublicKey


class KeyDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.key/1"
    path: str
    key_id: str
    """The SHA-256 of the public key's 32 bytes, which signatures refer to."""
    public_key: str
    """The public key as PEM. Private keys are never shown."""


def new(
    path: Annotated[Path, Parameter(help="The file for the private key; the public key is written to PATH.pub.")],
    *,
    json: flags.Json = False,
) -> int:
    """Create an ed25519 key pair: PATH (private, mode 0600) and PATH.pub (public).

    For example:
      proofbox key new release
    """
    from proofbox.evidence.attest.keys import new_key

    key = new_key(path)
    return _show(
        path, key, json, f"{path}: private key, keep it secret\n{path}.pub: public key, to share\nkey id {key.key_id}"
    )


def show_(
    path: Annotated[Path, Parameter(help="The file of a public or private key.")], *, json: flags.Json = False
) -> int:
    """Show a key's id and public key.

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
