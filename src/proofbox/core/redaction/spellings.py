"""The encodings of a secret: plain, URL-quoted, JSON-escaped, hex, and base64 at any alignment.

Escapes are recognised as encoders write them: of the characters that must be escaped, of all but letters and digits, or
of every character. Arbitrary mixtures of escaped and plain characters are not recognised.
"""

from __future__ import annotations

import base64
import json
import re
from string import ascii_letters, digits

MIN_SECRET = 6  # shorter values occur by chance, and redacting them would make the text unreadable
_MIN_BASE64 = 8


def spellings(secret: bytes) -> set[bytes]:
    """Return all encodings of one secret; empty for a value so short that it occurs by chance."""
    secret = secret.strip(b" \t\r\n")  # as in a value read from a file
    if len(secret) < MIN_SECRET:
        return set()
    from urllib.parse import quote, quote_plus  # commands that read evidence have no secrets

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
    forms |= _escaped(secret, text)
    for alphabet in (b"+/", b"-_"):
        forms.add(base64.b64encode(secret, alphabet).rstrip(b"="))
        forms |= {form for lead in range(3) if len(form := _inside_base64(secret, lead, alphabet)) >= _MIN_BASE64}
    return forms


def _escaped(secret: bytes, text: str) -> set[bytes]:
    """Return the hex forms, and the escaped forms of every character or of all but letters and digits."""
    units = text.encode("utf-16-be", "surrogatepass")
    whole = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
    forms = {secret.hex(), secret.hex().upper()}
    for case in "xX":
        for mark, codes in ((f"%{{:02{case}}}", [*secret]), (f"\\u{{:04{case}}}", whole)):
            for kept in ("", ascii_letters + digits):
                form = "".join(chr(code) if chr(code) in kept else mark.format(code) for code in codes)
                forms |= {form, form.replace("\\", "\\\\")}  # JSON inside JSON
    return {form.encode() for form in forms}


def _inside_base64(secret: bytes, lead: int, alphabet: bytes) -> bytes:
    """Return the base64 digits that depend only on the secret when `lead` bytes (mod 3) precede it."""
    digits = base64.b64encode(bytes(lead) + secret, alphabet)
    return digits[-(-lead * 8 // 6) : (lead + len(secret)) * 8 // 6]
