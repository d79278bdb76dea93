"""Which hosts a box may reach: rules, and an exact way of matching them.

A rule is `HOST`, `HOST:PORT`, `*.DOMAIN[:PORT]` or an address. Without a port it means 80 and 443. Names are compared
as ASCII, lower case, without a trailing dot; a wildcard stands for one or more labels, never for the domain itself. A
number is an address only in its canonical spelling: what a C library would also take for one (`0x7f.1`, `2130706433`)
matches nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Literal, cast

import msgspec

from proofbox.errors import RequestInvalid

Network = Literal["none", "full", "allow"]
WEB_PORTS = (80, 443)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)")


class HostRule(msgspec.Struct, frozen=True):
    host: str
    """Canonical: a name, or an address."""
    port: int | None
    subdomains: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return ("*." if self.subdomains else "") + host + (f":{self.port}" if self.port is not None else "")

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or (is_address(self.host) and ipaddress.ip_address(self.host).is_loopback)

    def allows(self, host: str, port: int) -> bool:
        """`host` must be canonical already."""
        if port != self.port if self.port is not None else port not in WEB_PORTS:
            return False
        return host.endswith(f".{self.host}") if self.subdomains else host == self.host


def parse_network(text: str | None) -> tuple[Network | None, tuple[str, ...]]:
    """What is written as `none`, `full` or `allow:HOST[:PORT],…`: the word, and the rules."""
    if text in (None, "none", "full"):
        return cast("Network | None", text), ()
    word, colon, hosts = str(text).partition(":")
    if word == "allow" and colon:
        return "allow", tuple(str(rule) for rule in parse_rules(hosts.split(",")))
    raise RequestInvalid(
        f"network {str(text)[:80]!r} is not known", op="start", fix_hints=["choose none, full or allow:HOST[:PORT],…"]
    )


def parse_rules(texts: Iterable[str]) -> tuple[HostRule, ...]:
    rules = tuple(dict.fromkeys(_parse(text.strip()) for text in texts if text.strip()))
    if not rules:
        raise RequestInvalid("an allowlist without a host", op="start", fix_hints=["write allow:example.org, or none"])
    return rules


def find_rule(rules: Iterable[HostRule], host: str, port: int) -> HostRule | None:
    return next((rule for rule in rules if rule.allows(host, port)), None)


def canonical_host(text: str) -> str | None:
    """The one spelling of a host that rules are compared with, or None for what is none."""
    host = text.lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        return str(ipaddress.ip_address(host)) if ":" in host and is_address(host) else None
    if is_address(host):
        return str(ipaddress.ip_address(host))
    host = host.removesuffix(".")
    labels = host.split(".")
    if not host.isascii() or len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    # A name whose last label is a number is an address to inet_aton; DNS has no such top level domain.
    return None if _NUMERIC.fullmatch(labels[-1]) else host


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # no zones: an address means one place


def is_public(text: str) -> bool:
    """Whether an address is one of the public internet's, and leads to no other by an embedded IPv4 address.

    `is_global` alone is not enough: in some versions of Python it accepts NAT64, 6to4 and site-local addresses.
    """
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(str(embedded))
        if address not in _GLOBAL_UNICAST or address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast


def split_port(text: str) -> tuple[str, int | None] | None:
    """`HOST`, `HOST:PORT`, `[V6]:PORT`; None for what is none of these."""
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
        f"{text[:200]!r} is no host that could be allowed",
        op="start",
        fix_hints=["write HOST, HOST:PORT, *.DOMAIN or an address; several with commas between"],
    )
