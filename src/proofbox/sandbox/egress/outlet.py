"""A box's allowlist put to work: the proxy, the directory with its sockets, and what a box must be told of them."""

from __future__ import annotations

from proofbox.core.allowlist import HostRule, parse_rules
from proofbox.errors import PolicyRefused
from proofbox.sandbox.contract import Forward, OnEvent
from proofbox.sandbox.egress.proxy import PROXY_SOCKET, AllowlistProxy
from proofbox.sandbox.host.scratch import Scratch

PROXY_PORT = 3128
LEAST_PORT = 1024


def usable_rules(rules: tuple[str, ...]) -> tuple[HostRule, ...]:
    """The rules, parsed; refused where an endpoint could not appear inside."""
    parsed = parse_rules(rules)
    for rule in parsed:
        if rule.is_loopback and rule.port is not None and (rule.port < LEAST_PORT or rule.port == PROXY_PORT):
            raise PolicyRefused(
                f"{rule} can't appear in a box: its ports begin at {LEAST_PORT}, and {PROXY_PORT} is the proxy's",
                op="start",
                fix_hints=["serve it at another port"],
            )
    return parsed


class Outlet:
    """Open while its box lives; closing it ends every connection and leaves nothing behind."""

    def __init__(self, rules: tuple[str, ...], *, name: str, on_event: OnEvent | None) -> None:
        parsed = usable_rules(rules)
        self._scratch = Scratch()
        self.directory = self._scratch.path
        self.directory.chmod(0o755)  # the box agent has a uid of its own; the state directory above is closed
        try:
            self._proxy = AllowlistProxy(self.directory, parsed, name=name, on_event=on_event)
        except BaseException:
            self._scratch.remove()
            raise
        direct = {rule.port for rule in self._proxy.loopback if rule.port is not None}
        self.forwards = (Forward(PROXY_PORT, PROXY_SOCKET), *(Forward(port, str(port)) for port in sorted(direct)))
        proxy = f"http://127.0.0.1:{PROXY_PORT}"
        self.environment = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
        self.environment |= {"NO_PROXY": "localhost,127.0.0.1", "no_proxy": "localhost,127.0.0.1"}

    def close(self) -> None:
        self._proxy.close()
        self._scratch.remove()
