"""The trials that succeeded, cached until the machine reboots or the program behind a provider changes."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from proofbox.core.dirs import cache_dir
from proofbox.core.documents import stored
from proofbox.core.files.atomic import write_document
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import ProofboxError


@stored("proofbox.trials/1", at="CACHE/trials.json")
class Trials(msgspec.Struct):
    """The trials that succeeded. A missing or malformed file is ignored; it only costs new trials."""

    worked: dict[str, str] = {}
    """By provider, what its trial is valid for: boot, user namespace, program, image and runtime."""
    schema_version: str = "proofbox.trials/1"

    @classmethod
    def load(cls) -> Trials:
        try:
            return parse_json((cache_dir() / "trials.json").read_bytes(), cls)
        except (OSError, ProofboxError, msgspec.DecodeError):
            return cls()

    def save(self) -> None:
        try:
            write_document(cache_dir() / "trials.json", msgspec.json.encode(self))
        except (OSError, ProofboxError):
            pass


def boot_identity() -> str:
    """Identify the boot and the user namespace: a provider may work in one namespace and fail in another."""
    return f"{_boot_id()} {_namespace()}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/user")
    except OSError:
        return ""
