"""Trying a store before anything is entrusted to it: does it refuse what the contract says it must refuse?

A store that ignores conditions answers every request with success, and the last writer wins silently. So the trial does
what must fail, and looks. It leaves one small object, the same each time.
"""

from __future__ import annotations

import secrets

from proofbox.errors import StoreConflict, StoreUntrusted
from proofbox.evidence.store.contract import BundleStore, Stored

KEY = ".proofbox/store-trial"
_ATTEMPTS = 20


def check_store(store: BundleStore) -> None:
    """Raise StoreUntrusted unless the store honours create-only and compare-and-swap, and lists what it holds."""
    for _ in range(_ATTEMPTS):
        found = _ensure(store)
        _must_refuse_create(store)
        mine = secrets.token_bytes(16)
        try:
            version = store.swap(KEY, mine, found.version)
        except StoreConflict:
            continue  # another trial came between: that is the contract at work
        try:
            store.swap(KEY, secrets.token_bytes(16), found.version)
        except StoreConflict:
            pass
        else:
            raise _untrusted("it replaced an object that had changed since it was read")
        after = store.get(KEY)
        if after is None or (after.version == version and after.data != mine):
            raise _untrusted("it lost what was written")
        if KEY not in store.list(KEY.partition("/")[0]):
            raise _untrusted("it does not list what it holds")
        return
    raise _untrusted("it never let a swap through")


def _ensure(store: BundleStore) -> Stored:
    found = store.get(KEY)
    if found is None:
        try:
            store.create(KEY, secrets.token_bytes(16))
        except StoreConflict:
            pass
        found = store.get(KEY)
    if found is None:
        raise _untrusted("what was written can't be read")
    return found


def _must_refuse_create(store: BundleStore) -> None:
    try:
        store.create(KEY, b"a second creation")
    except StoreConflict:
        return
    raise _untrusted("it created an object over another one")


def _untrusted(what: str) -> StoreUntrusted:
    return StoreUntrusted(
        f"the store can't be trusted with evidence: {what}",
        op="store check",
    )
