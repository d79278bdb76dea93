"""The data of a capabilities file, and the built-in presets.

preset = "sandbox"              # optional: its lists come first; the lists below are appended

[fs]                            # globs relative to the workspace's root; "!" denies, and deny takes precedence
read = ["**", "!**/*.pem"]
write = ["src/**", "tests/**"]
delete = ["src/**", "tests/**"]
execute = ["**"]
deny = ["private"]              # the same as "!private" in all four lists

[commands]                      # words with *; a final ** matches all remaining arguments. Advisory.
allow = ["git **", "!git push **", "pytest **"]

[network]                       # HOST, HOST:PORT, *.DOMAIN, an IP address; "*" allows everything
allow = ["packages.example.org"]

[env]                           # variable names: read (passed from the caller to commands), write (set by calls)
read = ["LANG"]
write = ["CI", "PYTEST_*"]

snapshot = true                 # likewise rollback, fork, clock, random; clock and random are advisory
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from proofbox.core.documents import stored
from proofbox.core.files.plain import read_plain
from proofbox.core.parsing.toml import parse_toml
from proofbox.errors import CapabilitiesInvalid

SIZE_LIMIT = 64 << 10
_SECRETS = (
    *("!**/.env", "!**/.env.local", "!**/.env.*.local", "!**/.netrc", "!**/.pypirc", "!**/.git-credentials"),
    *("!**/id_rsa", "!**/id_ecdsa", "!**/id_ed25519"),
)
_FORGE = ("github.com", "*.githubusercontent.com")


class Files(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    read: tuple[str, ...] = ()
    """Files that may be read."""
    write: tuple[str, ...] = ()
    """Files that may be created and changed."""
    delete: tuple[str, ...] = ()
    """Files that may be deleted."""
    execute: tuple[str, ...] = ()
    """Files that may be executed."""
    deny: tuple[str, ...] = ()
    """Files denied for all four, as with `!` in each list."""


class Allowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allow: tuple[str, ...] = ()
    """Patterns. A pattern with `!` denies, and deny takes precedence."""


class Variables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    read: tuple[str, ...] = ()
    """Names of the caller's variables that are passed to commands."""
    write: tuple[str, ...] = ()
    """Names of variables that a call may set."""


@stored("capabilities.toml", at="the file that --capabilities or a mission names")
class Grants(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Granted permissions. Everything else is denied."""

    preset: str | None = None
    """A preset whose lists come first. The lists here are appended."""
    fs: Files = Files()
    """Globs relative to the workspace's root. A glob with `!` denies, and deny takes precedence."""
    commands: Allowed = Allowed()
    """Command lines, matched word by word, with `*`. Advisory: not enforced by the box."""
    network: Allowed = Allowed()
    """Hosts that may be reached."""
    env: Variables = Variables()
    """Names of environment variables, with `*`."""
    snapshot: bool | None = None
    """Whether snapshots may be taken."""
    rollback: bool | None = None
    """Whether the files may be rolled back to an earlier snapshot."""
    fork: bool | None = None
    """Whether the workspace may be forked. For programs that check it; no tool forks."""
    clock: bool | None = None
    """Whether the time may be read. Advisory, for programs that check it; no tool does."""
    random: bool | None = None
    """Whether random numbers may be drawn. Advisory, for programs that check it; no tool does."""

    def over(self, other: Grants) -> Grants:
        """Return `other` with these grants added: lists are appended, flags that are set here take precedence."""
        return Grants(
            preset=other.preset,
            fs=_both(other.fs, self.fs),
            commands=_both(other.commands, self.commands),
            network=_both(other.network, self.network),
            env=_both(other.env, self.env),
            **{name: getattr(other, name) if getattr(self, name) is None else getattr(self, name) for name in FLAGS},
        )


FLAGS = ("snapshot", "rollback", "fork", "clock", "random")
_ALL = ("**",)
_HISTORY: dict[str, Any] = {"snapshot": True, "rollback": True, "fork": True, "clock": True, "random": True}

PRESETS: dict[str, Grants] = {
    # Read-only.
    "minimal": Grants(preset="minimal", fs=Files(read=("**", *_SECRETS))),
    # Everything in the workspace except secrets, any command, no network.
    "sandbox": Grants(
        preset="sandbox",
        fs=Files(read=("**", *_SECRETS), write=_ALL, delete=_ALL, execute=_ALL),
        commands=Allowed(_ALL),
        env=Variables(write=("*",)),
        **_HISTORY,
    ),
    # The same, plus hosts to fetch code from. The project has to name its package registry.
    "developer": Grants(
        preset="developer",
        fs=Files(read=("**", *_SECRETS), write=_ALL, delete=_ALL, execute=_ALL),
        commands=Allowed(_ALL),
        network=Allowed(_FORGE),
        env=Variables(read=("LANG", "LC_*", "TZ"), write=("*",)),
        **_HISTORY,
    ),
    # An agent under a supervisor. Only the supervisor may roll back and fork.
    "agent": Grants(
        preset="agent",
        fs=Files(read=("**", *_SECRETS), write=_ALL, delete=_ALL, execute=_ALL),
        commands=Allowed(_ALL),
        env=Variables(write=("*",)),
        snapshot=True,
        clock=True,
        random=True,
    ),
    "unrestricted": Grants(
        preset="unrestricted",
        fs=Files(read=_ALL, write=_ALL, delete=_ALL, execute=_ALL),
        commands=Allowed(_ALL),
        network=Allowed(("*",)),
        env=Variables(read=("*",), write=("*",)),
        **_HISTORY,
    ),
}

DEFAULT_CAPABILITIES = "sandbox"


def preset(name: str) -> Grants:
    found = PRESETS.get(name)
    if found is None:
        raise CapabilitiesInvalid(
            f"unknown preset {name[:80]!r}", op="capabilities", fix_hints=[f"known presets: {', '.join(PRESETS)}"]
        )
    return found


def parse(text: str) -> Grants:
    """Parse TOML. Unknown keys are refused, because a misspelled deny would have no effect."""
    try:
        given = msgspec.convert(parse_toml(text), Grants)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise CapabilitiesInvalid(
            f"invalid capabilities: {error}",
            op="capabilities",
            fix_hints=["use the tables fs, commands, network and env, as described in docs/workspace-tools.md"],
        ) from None
    return given if given.preset is None else given.over(preset(given.preset))


def load(source: str | Path) -> Grants:
    """Load a preset by name, or a file."""
    if str(source) in PRESETS:
        return PRESETS[str(source)]
    try:
        data = read_plain(Path(source), SIZE_LIMIT + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CapabilitiesInvalid(
            f"{str(source)[:200]!r} is neither a preset nor a readable file: {error}",
            op="capabilities",
            fix_hints=[f"known presets: {', '.join(PRESETS)}"],
        ) from None
    if len(data) > SIZE_LIMIT:
        raise CapabilitiesInvalid(f"{source} is larger than {SIZE_LIMIT} bytes", op="capabilities")
    return parse(text)


def _both(first: Any, second: Any) -> Any:
    kind = type(first)
    return kind(*(a + b for a, b in zip(msgspec.structs.astuple(first), msgspec.structs.astuple(second), strict=True)))
