"""The spellings in which a secret travels: as it is, URL-quoted, JSON-escaped, in hex, inside base64 at any alignment.

Escapes are known as encoders write them: of the characters that must be escaped, of all but letters and digits, and of
every character. One that escapes some characters and not others at will is not recognised.
"""

from __future__ import annotations

import base64
import json
import re
from string import ascii_letters, digits
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
    forms |= _escaped(secret, text)
    for alphabet in (b"+/", b"-_"):
        forms.add(base64.b64encode(secret, alphabet).rstrip(b"="))
        forms |= {form for lead in range(3) if len(form := _inside_base64(secret, lead, alphabet)) >= _MIN_BASE64}
    return forms


def _escaped(secret: bytes, text: str) -> set[bytes]:
    """In hex, and by escapes: of every character, and of all but letters and digits."""
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
    """The base64 digits that depend on the secret alone when `lead` bytes (mod 3) were encoded before it."""
    digits = base64.b64encode(bytes(lead) + secret, alphabet)
    return digits[-(-lead * 8 // 6) : (lead + len(secret)) * 8 // 6]
