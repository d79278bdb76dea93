"""Lists of patterns. A leading `!` denies; deny takes precedence; the order does not matter otherwise."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from proofbox.core.allowlist import HostRule, parse_rules
from proofbox.core.text import printable
from proofbox.errors import CapabilitiesInvalid, RequestInvalid
from proofbox.workspace.search.globs import Glob, Word, expanded

P = TypeVar("P")
EVERYTHING = "*"


class RuleDecision(msgspec.Struct, frozen=True):
    """Whether an action is allowed, and the rule that decided."""

    kind: str
    """`fs.read`, `command`, `network`, `env.write`, `rollback`, …"""
    target: str
    allowed: bool
    rule: str
    advisory: bool = False
    """Checked only by the tools: a running program is not prevented from doing it."""


class PatternRules(Generic[P]):
    """The patterns of one list, each with its original text."""

    def __init__(self, kind: str, patterns: Iterable[str], parse: Callable[[str], Sequence[P]]) -> None:
        self.kind = kind
        self.allow: list[tuple[str, P]] = []
        self.deny: list[tuple[str, P]] = []
        for text in patterns:
            denies = text.startswith("!")
            try:
                parsed = parse(text.removeprefix("!"))
            except (ValueError, RequestInvalid) as error:
                reason = error.message if isinstance(error, RequestInvalid) else str(error)
                raise CapabilitiesInvalid(
                    f"{kind}: invalid rule {printable(text[:200])!r}: {reason}",
                    op="capabilities",
                    details={"kind": kind, "rule": text[:200]},
                ) from None
            (self.deny if denies else self.allow).extend((text, each) for each in parsed)

    def decide(self, target: str, allows: Callable[[P], bool], denies: Callable[[P], bool]) -> RuleDecision:
        for text, pattern in self.deny:
            if denies(pattern):
                return RuleDecision(self.kind, target, False, f"{self.kind}: {text}")
        for text, pattern in self.allow:
            if allows(pattern):
                return RuleDecision(self.kind, target, True, f"{self.kind}: {text}")
        return RuleDecision(self.kind, target, False, f"{self.kind}: nothing allows it")


class PathRules(PatternRules[Glob]):
    """Paths relative to the workspace's root. Denying a path also denies everything below it."""

    def __init__(self, kind: str, patterns: Iterable[str]) -> None:
        super().__init__(kind, patterns, lambda text: [Glob(each) for each in expanded(text)])

    def of(self, path: str) -> RuleDecision:
        return self.decide(path, lambda glob: glob.matches(path), lambda glob: matches_above(glob, path))

    def denies(self, path: str) -> bool:
        return any(matches_above(glob, path) for _, glob in self.deny)

    def reaches(self, path: str) -> bool:
        """Return whether something at or below `path` may be allowed."""
        return not self.denies(path) and any(g.matches(path) or g.may_match_below(path) for _, g in self.allow)

    def covers(self, path: str) -> bool:
        """Return whether every existing or future path at or below `path` is allowed."""
        return any(g.covers(path) for _, g in self.allow) and not self.denies(path) and not self.denies_below(path)

    def denies_below(self, path: str) -> bool:
        return any(glob.may_match_below(path) for _, glob in self.deny)


class WordRules(PatternRules[Word]):
    """Names of environment variables."""

    def __init__(self, kind: str, patterns: Iterable[str]) -> None:
        super().__init__(kind, patterns, lambda text: [Word(text)])

    def of(self, word: str) -> RuleDecision:
        return self.decide(word, lambda each: each.matches(word), lambda each: each.matches(word))


class CommandRules(PatternRules["list[Word] | None"]):
    """Commands, matched by their arguments: each word is a separate pattern; a final `**` matches the remaining words.

    Advisory: an allowed program may start any other program.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        super().__init__("command", patterns, _command)

    def of(self, argv: Sequence[str]) -> RuleDecision:
        def fits(pattern: list[Word] | None) -> bool:
            return _fits(pattern, argv)

        made = self.decide(shlex.join(argv), fits, fits)
        return msgspec.structs.replace(made, advisory=True)


class HostRules(PatternRules["HostRule | None"]):
    """Hosts and ports. Without a port, an allowed host is allowed on 80 and 443, and a denied host is denied on all."""

    def __init__(self, patterns: Iterable[str]) -> None:
        super().__init__("network", patterns, lambda text: [None] if text == EVERYTHING else list(parse_rules([text])))

    def of(self, host: str, port: int) -> RuleDecision:
        """Decide on a canonical `host` and a port."""

        def denies(rule: HostRule | None) -> bool:
            if rule is None:
                return True
            return rule.allows(host, port) or (rule.port is None and rule.allows(host, 443))

        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self.decide(target, lambda rule: rule is None or rule.allows(host, port), denies)


def matches_above(glob: Glob, path: str) -> bool:
    """Return whether the glob matches the path or one of its parent directories."""
    names = path.split("/") if path else []
    return any(glob.matches("/".join(names[:count])) for count in range(1, len(names) + 1)) or glob.matches(path)


_REST = Word(EVERYTHING)


def _command(text: str) -> list[list[Word] | None]:
    words = shlex.split(text)
    if not words:
        raise ValueError("it is empty")
    if words == ["**"]:
        return [None]
    pattern = [Word(word) for word in words[:-1]]
    return [[*pattern, _REST] if words[-1] == "**" else [*pattern, Word(words[-1])]]


def _fits(pattern: list[Word] | None, argv: Sequence[str]) -> bool:
    if pattern is None:
        return True
    rest = pattern[-1] is _REST
    fixed = pattern[:-1] if rest else pattern
    if len(argv) < len(fixed) or (len(argv) > len(fixed) and not rest):
        return False
    return all(word.matches(given) for word, given in zip(fixed, argv, strict=False))
