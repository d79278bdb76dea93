"""The apps' specs, and the check of their owners."""

from __future__ import annotations

from pathlib import Path

import msgspec

from proofbox.core.redaction.redactor import Redactor
from proofbox.delivery.backend.ledger import BackendDatabase
from proofbox.delivery.backend.rules import BackendRefusal
from proofbox.delivery.client.wire import AppSpec


def store_spec(data: Path, enterprise: str, spec: AppSpec) -> None:
    """Store an app's spec in a data directory. A backend may be using it; SQLite makes them wait for each other."""
    ledger = BackendDatabase(data / "backend.db")
    try:
        Specs(ledger).put(enterprise, spec)
    finally:
        ledger.close()


class Specs:
    def __init__(self, ledger: BackendDatabase) -> None:
        self._ledger = ledger

    def put(self, enterprise: str, spec: AppSpec) -> AppSpec:
        """Store an app's spec. Refuse a spec that seems to contain a secret."""
        plain = msgspec.to_builtins(spec)
        if Redactor().redact_json(plain) != plain:
            raise BackendRefusal(422, "spec_holds_secret", "a spec must not contain secrets, and this one seems to")
        self._ledger.put_spec(enterprise, spec.app_id, msgspec.json.encode(spec))
        return spec

    def get(self, enterprise: str, app: str | None) -> AppSpec:
        found = [msgspec.json.decode(each, type=AppSpec) for each in self._ledger.specs(enterprise)]
        if not found:
            raise BackendRefusal(404, "enterprise_unknown", "no such enterprise")
        if app is not None:
            found = [spec for spec in found if spec.app_id == app]
        if not found:
            raise BackendRefusal(404, "app_unknown", "the enterprise has no such app")
        if len(found) > 1:
            raise BackendRefusal(422, "app_ambiguous", "the enterprise has several apps: select one with appId")
        return found[0]

    def check_owner(self, app: str, user: str) -> None:
        owners = [msgspec.json.decode(spec, type=AppSpec).owner_user_id for _, spec in self._ledger.specs_of_app(app)]
        if any(owner not in (None, user) for owner in owners):
            raise BackendRefusal(403, "not_the_owner", "the app belongs to another user")

    def note_repository(self, app: str, full_name: str) -> None:
        for enterprise, data in self._ledger.specs_of_app(app):
            spec = msgspec.json.decode(data, type=AppSpec)
            noted = msgspec.structs.replace(spec, git_hub_repo_full_name=full_name, status="exported")
            self._ledger.put_spec(enterprise, app, msgspec.json.encode(noted))
