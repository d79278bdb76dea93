"""Decide whether an action is allowed, and name the rule that decided."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from proofbox.core.text import printable
from proofbox.errors import CapabilityDenied
from proofbox.workspace.capabilities.grants import FLAGS, Grants, load
from proofbox.workspace.capabilities.network import NetworkEndpoint, endpoint_of
from proofbox.workspace.capabilities.rules import CommandRules, HostRules, PathRules, RuleDecision, WordRules
from proofbox.workspace.tools.tree import Access

Flag = Literal["snapshot", "rollback", "fork", "clock", "random"]
_ADVISORY = ("clock", "random")


class Capabilities:
    """What an agent may do: its files, commands and network. Raises CapabilitiesInvalid.

    For example, from a preset or a file:

        proofbox.Capabilities.load("sandbox")
    """

    def __init__(self, grants: Grants) -> None:
        self.grants = grants
        everywhere = tuple(each if each.startswith("!") else f"!{each}" for each in grants.fs.deny)
        self.read = PathRules("fs.read", grants.fs.read + everywhere)
        self.write = PathRules("fs.write", grants.fs.write + everywhere)
        self.delete = PathRules("fs.delete", grants.fs.delete + everywhere)
        self.execute = PathRules("fs.execute", grants.fs.execute + everywhere)
        self.commands = CommandRules(grants.commands.allow)
        self.network = HostRules(grants.network.allow)
        self.env_read = WordRules("env.read", grants.env.read)
        self.env_write = WordRules("env.write", grants.env.write)

    @classmethod
    def load(cls, source: str | Path) -> Capabilities:
        return cls(load(source))

    def file(self, access: Access, path: str) -> RuleDecision:
        """Decide on a resolved path, relative to the root, without `.`, `..` or symbolic links."""
        if access == "list":
            shown = self.visible(path)
            rule = "allowed by fs.read or fs.write" if shown else "fs.read: nothing at or below it is allowed"
            return RuleDecision("fs.list", path, shown, rule)
        rules = {"read": self.read, "write": self.write, "delete": self.delete}
        return rules[access].of(path)

    def visible(self, path: str) -> bool:
        return not path or self.read.reaches(path) or self.write.reaches(path)

    def command(self, argv: Sequence[str]) -> RuleDecision:
        return self.commands.of(argv)

    def url(self, url: str) -> RuleDecision:
        return self._endpoint(url, endpoint_of(url))

    def host(self, host: str, port: int) -> RuleDecision:
        bare = host.removeprefix("[").removesuffix("]")
        spelled = f"[{bare}]" if ":" in bare else bare
        return self._endpoint(f"{host}:{port}", endpoint_of(f"tcp://{spelled}:{port}"))

    def flag(self, name: Flag) -> RuleDecision:
        assert name in FLAGS  # noqa: S101 (a name that a program misspelled)
        allowed = getattr(self.grants, name) is True
        return RuleDecision(name, "", allowed, f"{name}: {'yes' if allowed else 'no'}", advisory=name in _ADVISORY)

    def _endpoint(self, target: str, found: NetworkEndpoint | str) -> RuleDecision:
        if isinstance(found, str):
            return RuleDecision("network", target[:200], False, f"network: {found}")
        return self.network.of(found.host, found.port)


class CapabilityGuard:
    """An adapter that lets file trees check capabilities."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities

    def check(self, access: Access, path: str) -> None:
        require(self._capabilities.file(access, path))

    def visible(self, path: str) -> bool:
        return self._capabilities.visible(path)


def require(decision: RuleDecision) -> RuleDecision:
    """Return the decision if it is allowed, else raise CapabilityDenied."""
    if decision.allowed:
        return decision
    raise CapabilityDenied(
        f"{decision.kind} of {printable(decision.target[:200]) or 'this'} is not allowed ({printable(decision.rule)})",
        op="capabilities",
        details={
            "kind": decision.kind,
            "target": printable(decision.target[:1000]),
            "rule": printable(decision.rule),
            "advisory": decision.advisory,
        },
    )
