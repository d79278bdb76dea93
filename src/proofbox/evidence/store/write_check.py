"""Test a store before it is used: it must refuse the writes that the contract forbids.

A store that ignores conditions reports success for every request, and the last writer wins silently. The trial
therefore makes requests that must fail. It leaves one small object, always at the same key.
"""

from __future__ import annotations

import secrets

from proofbox.errors import StoreConflict, StoreUntrusted
from proofbox.evidence.store.contract import BundleStore, Stored

KEY = ".proofbox/store-trial"
_ATTEMPTS = 20


def check_store(store: BundleStore) -> None:
    """Raise StoreUntrusted unless the store supports create-only and compare-and-swap, and lists its objects."""
    for _ in range(_ATTEMPTS):
        found = _ensure(store)
        _must_refuse_create(store)
        mine = secrets.token_bytes(16)
        try:
            version = store.swap(KEY, mine, found.version)
        except StoreConflict:
            continue  # a concurrent trial won, as the contract requires
        try:
            store.swap(KEY, secrets.token_bytes(16), found.version)
        except StoreConflict:
            pass
        else:
            raise _untrusted("it replaced an object that had changed since it was read")
        after = store.get(KEY)
        if after is None or (after.version == version and after.data != mine):
            raise _untrusted("it lost a written object")
        if KEY not in store.list(KEY.partition("/")[0]):
            raise _untrusted("it does not list its objects")
        return
    raise _untrusted("every swap failed")


def _ensure(store: BundleStore) -> Stored:
    found = store.get(KEY)
    if found is None:
        try:
            store.create(KEY, secrets.token_bytes(16))
        except StoreConflict:
            pass
        found = store.get(KEY)
    if found is None:
        raise _untrusted("a written object can't be read")
    return found


def _must_refuse_create(store: BundleStore) -> None:
    try:
        store.create(KEY, b"a second creation")
    except StoreConflict:
        return
    raise _untrusted("it overwrote an existing object on create")


def _untrusted(what: str) -> StoreUntrusted:
    return StoreUntrusted(
        f"the store can't be trusted with evidence: {what}",
        op="store check",
    )
