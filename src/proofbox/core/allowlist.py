"""Rules for the hosts that a box may reach, with exact matching.

A rule is `HOST`, `HOST:PORT`, `*.DOMAIN[:PORT]` or an address. Without a port it means 80 and 443. Names are compared
as ASCII, lower case, without a trailing dot; a wildcard stands for one or more labels, never for the domain itself.
Addresses match only in canonical form: other forms that a C library accepts (`0x7f.1`, `2130706433`) match nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from proofbox.errors import RequestInvalid

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

Network = Literal["none", "full", "allow"]
WEB_PORTS = (80, 443)
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAT64 = "64:ff9b::/96"
_GLOBAL_UNICAST = "2000::/3"
_NUMERIC = r"(0x[0-9a-f]*|[0-9]+)"


class HostRule(msgspec.Struct, frozen=True):
    host: str
    """Host name or address, in canonical form."""
    port: int | None
    subdomains: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return ("*." if self.subdomains else "") + host + (f":{self.port}" if self.port is not None else "")

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or (is_address(self.host) and _address(self.host).is_loopback)

    def allows(self, host: str, port: int) -> bool:
        """Return whether the rule allows a connection. `host` must be in canonical form."""
        if port != self.port if self.port is not None else port not in WEB_PORTS:
            return False
        return host.endswith(f".{self.host}") if self.subdomains else host == self.host


def parse_network(text: str | None) -> tuple[Network | None, tuple[str, ...]]:
    """Parse `none`, `full` or `allow:HOST[:PORT],…` into the mode and its rules."""
    if text in (None, "none", "full"):
        return cast("Network | None", text), ()
    word, colon, hosts = str(text).partition(":")
    if word == "allow" and colon:
        return "allow", tuple(str(rule) for rule in parse_rules(hosts.split(",")))
    raise RequestInvalid(
        f"unknown network mode {str(text)[:80]!r}", op="start", fix_hints=["choose none, full or allow:HOST[:PORT],…"]
    )


def parse_rules(texts: Iterable[str]) -> tuple[HostRule, ...]:
    rules = tuple(dict.fromkeys(_parse(text.strip()) for text in texts if text.strip()))
    if not rules:
        raise RequestInvalid("the allowlist has no hosts", op="start", fix_hints=["use allow:example.org or none"])
    return rules


def find_rule(rules: Iterable[HostRule], host: str, port: int) -> HostRule | None:
    return next((rule for rule in rules if rule.allows(host, port)), None)


def canonical_host(text: str) -> str | None:
    """Return the canonical form of a host, which rules are compared with; None if it is not a valid host."""
    host = text.lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        return str(_address(host)) if ":" in host and is_address(host) else None
    if is_address(host):
        return str(_address(host))
    host = host.removesuffix(".")
    labels = host.split(".")
    if not host.isascii() or len(host) > 253 or not all(re.fullmatch(_LABEL, label) for label in labels):
        return None
    # inet_aton reads a name whose last label is a number as an address; DNS has no such top-level domain.
    return None if re.fullmatch(_NUMERIC, labels[-1]) else host


def is_address(text: str) -> bool:
    try:
        _address(text)
    except ValueError:
        return False
    return "%" not in text  # zone ids are not supported


def _address(text: str) -> IPv4Address | IPv6Address:
    from ipaddress import ip_address  # only boxes with an allowlist need it

    return ip_address(text)


def is_public(text: str) -> bool:
    """Return whether an address is on the public internet and embeds no IPv4 address that is not.

    `is_global` alone is not enough: in some versions of Python it accepts NAT64, 6to4 and site-local addresses.
    """
    from ipaddress import IPv4Address, IPv6Address, IPv6Network

    address = _address(text)
    if isinstance(address, IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if address in IPv6Network(_NAT64):
            embedded = IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(str(embedded))
        if address not in IPv6Network(_GLOBAL_UNICAST) or address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast


def split_port(text: str) -> tuple[str, int | None] | None:
    """Split `HOST`, `HOST:PORT` or `[V6]:PORT` into host and port; None if it is malformed."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.startswith("[")):
        return text, None
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or len(port) > 5:
        return None
    return host, int(port)


def _parse(text: str) -> HostRule:
    parts = split_port(text)
    if parts is not None:
        host, port = parts
        subdomains = host.startswith("*.")
        try:
            name = host.removeprefix("*.")
            known = canonical_host(name if name.isascii() else name.encode("idna").decode("ascii"))
        except UnicodeError:
            known = None
        if known is not None and not (subdomains and is_address(known)):
            return HostRule(known, port, subdomains)
    raise RequestInvalid(
        f"{text[:200]!r} is not a valid host rule",
        op="start",
        fix_hints=["use HOST, HOST:PORT, *.DOMAIN or an address, separated by commas"],
    )
