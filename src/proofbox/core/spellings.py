"""The spellings in which a secret travels: as it is, URL-quoted, JSON-escaped, inside base64 at any alignment."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote, quote_plus

MIN_SECRET = 6  # shorter values occur by chance, and redacting them would shred the text
_MIN_BASE64 = 8


def spellings(secret: bytes) -> set[bytes]:
    """Those of one secret; none for a value too short to be told from chance."""
    secret = secret.strip(b" \t\r\n")  # as read from a file
    if len(secret) < MIN_SECRET:
        return set()
    forms = {secret}
    for quoted in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        forms.add(quoted.encode())
        forms.add(re.sub("%..", lambda escape: escape[0].lower(), quoted).encode())
    text = secret.decode("utf-8", "surrogateescape")
    for ascii_only in (True, False):
        once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        twice = json.dumps(once, ensure_ascii=ascii_only)[1:-1]  # a tool call's arguments are JSON inside JSON
        for escaped in (once, twice):
            forms.add(escaped.encode("utf-8", "surrogateescape"))
    for alphabet in (b"+/", b"-_"):
        forms.add(base64.b64encode(secret, alphabet).rstrip(b"="))
        forms |= {form for lead in range(3) if len(form := _inside_base64(secret, lead, alphabet)) >= _MIN_BASE64}
    return forms


def _inside_base64(secret: bytes, lead: int, alphabet: bytes) -> bytes:
    """The base64 digits that depend on the secret alone when `lead` bytes (mod 3) were encoded before it."""
    digits = base64.b64encode(bytes(lead) + secret, alphabet)
    return digits[-(-lead * 8 // 6) : (lead + len(secret)) * 8 // 6]
