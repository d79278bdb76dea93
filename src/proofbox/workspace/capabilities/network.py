"""Parse the host and port of a URL strictly: URLs that two programs could read differently are refused."""

from __future__ import annotations

import re
from typing import NamedTuple

from proofbox.core.allowlist import canonical_host, split_port

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://([^/?#]*)")
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21, "ssh": 22, "git": 9418}
_MAX_LENGTH = 8192


class NetworkEndpoint(NamedTuple):
    host: str
    port: int


def endpoint_of(url: str) -> NetworkEndpoint | str:
    """Return the endpoint, or the reason why the URL is refused. User information before an `@` is not a host."""
    if len(url) > _MAX_LENGTH or any(sign <= " " or sign in "\\\x7f" or sign.isspace() for sign in url):
        return "it is too long or contains spaces, control characters or a backslash"
    found = _SCHEME.match(url)
    if found is None:
        return "it has no scheme or no host"
    scheme, authority = found[1].lower(), found[2]
    if authority.count("@") > 1:
        return "it has more than one @ before its path"
    parts = split_port(authority.rpartition("@")[2])
    if parts is None:
        return "its port is invalid"
    name, port = parts
    try:
        host = canonical_host(name if name.isascii() else name.encode("idna").decode("ascii"))
    except UnicodeError:
        host = None
    if host is None:
        return "its host is invalid"
    port = port if port is not None else _PORTS.get(scheme)
    if port is None:
        return f"{scheme} has no known default port"
    return NetworkEndpoint(_plain_address(host), port)


def _plain_address(host: str) -> str:
    """Return the IPv4 address of an IPv4-mapped IPv6 address, else the host unchanged."""
    from ipaddress import IPv6Address  # few commands need it

    try:
        mapped = IPv6Address(host).ipv4_mapped
    except ValueError:
        return host
    return host if mapped is None else str(mapped)
