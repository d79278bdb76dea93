"""Whether an address is this machine's: what goes there travels over no network."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """By its name or address. Other names are not looked up: what they mean may change."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
