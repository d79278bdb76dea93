"""The network access of a box with an allowlist: its proxy, the directory of the sockets, and the box's settings."""

from __future__ import annotations

from proofbox.core.allowlist import HostRule, parse_rules
from proofbox.errors import PolicyRefused
from proofbox.sandbox.contract import Forward, OnEvent
from proofbox.sandbox.host.scratch import Scratch

PROXY_PORT = 3128
MIN_PORT = 1024


def usable_rules(rules: tuple[str, ...]) -> tuple[HostRule, ...]:
    """Parse the rules; refuse a loopback endpoint whose port is not available in the box."""
    parsed = parse_rules(rules)
    for rule in parsed:
        if rule.is_loopback and rule.port is not None and (rule.port < MIN_PORT or rule.port == PROXY_PORT):
            raise PolicyRefused(
                f"{rule} can't be used in a box: ports start at {MIN_PORT}, and {PROXY_PORT} is used by the proxy",
                op="start",
                fix_hints=["use another port for the service"],
            )
    return parsed


class BoxProxy:
    """The proxy of one box, open as long as the box lives. `close` ends every connection and leaves nothing behind."""

    def __init__(self, rules: tuple[str, ...], *, name: str, on_event: OnEvent | None) -> None:
        from proofbox.sandbox.egress.proxy import PROXY_SOCKET, AllowlistProxy  # few boxes need it

        parsed = usable_rules(rules)
        self._scratch = Scratch()
        self.directory = self._scratch.path
        self.directory.chmod(0o755)  # the box agent has another uid; the state directory above has mode 0700
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
