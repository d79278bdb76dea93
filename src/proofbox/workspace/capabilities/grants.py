"""What a capabilities file says, as data; and the presets, which are such data too.

preset = "sandbox"              # optional: its lists come first, and lists add up

[fs]                            # globs from the workspace's root; "!" denies, and a deny wins
read = ["**", "!**/*.pem"]
write = ["src/**", "tests/**"]
delete = ["src/**", "tests/**"]
execute = ["**"]
deny = ["private"]              # the same as "!private" in all four

[commands]                      # words with *; a last ** is all the rest. Advisory.
allow = ["git **", "!git push **", "pytest **"]

[network]                       # HOST, HOST:PORT, *.DOMAIN, an address; "*" is everything
allow = ["packages.example.org"]

[env]                           # names of variables: read, of the caller's that commands get; write, that calls set
read = ["LANG"]
write = ["CI", "PYTEST_*"]

snapshot = true                 # and rollback, fork; clock and random are advisory
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from proofbox.core.documents import stored
from proofbox.core.files.plain import read_plain
from proofbox.core.toml import parse_toml
from proofbox.errors import CapabilitiesInvalid

SIZE_LIMIT = 64 << 10
_SECRETS = (
    *("!**/.env", "!**/.env.local", "!**/.env.*.local", "!**/.netrc", "!**/.pypirc", "!**/.git-credentials"),
    *("!**/id_rsa", "!**/id_ecdsa", "!**/id_ed25519"),
)
_FORGE = ("github.com", "*.githubusercontent.com")


class Files(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    read: tuple[str, ...] = ()
    """What may be read."""
    write: tuple[str, ...] = ()
    """What may be made and changed."""
    delete: tuple[str, ...] = ()
    """What may be removed."""
    execute: tuple[str, ...] = ()
    """What may be run as a program."""
    deny: tuple[str, ...] = ()
    """What none of these allows, as `!` in each of them."""


class Allowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allow: tuple[str, ...] = ()
    """Patterns; one with `!` denies, and a deny wins."""


class Variables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    read: tuple[str, ...] = ()
    """Names of the caller's variables that commands get."""
    write: tuple[str, ...] = ()
    """Names of variables that a call may set."""


@stored("capabilities.toml", at="the file that --capabilities or a mission names")
class Grants(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nothing is allowed that is not said here."""

    preset: str | None = None
    """Its lists come first, and these add to them."""
    fs: Files = Files()
    """Globs from the workspace's root; one with `!` denies, and a deny wins."""
    commands: Allowed = Allowed()
    """Command lines, word by word, with `*`; advisory: no box enforces it."""
    network: Allowed = Allowed()
    """Hosts that can be reached."""
    env: Variables = Variables()
    """Names of variables, with `*`."""
    snapshot: bool | None = None
    """Whether that may be done; so with those below, of which clock and random are advisory."""
    rollback: bool | None = None
    """Of the files, to an earlier snapshot."""
    fork: bool | None = None
    """Of the workspace, for programs that ask; no tool does it."""
    clock: bool | None = None
    """Reading the time, for programs that ask; no tool does it."""
    random: bool | None = None
    """Drawing random numbers, for programs that ask; no tool does it."""

    def over(self, other: Grants) -> Grants:
        """Both: lists added up, and where both say yes or no, this."""
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
    # Looking alone.
    "minimal": Grants(preset="minimal", fs=Files(read=("**", *_SECRETS))),
    # Everything in the workspace but its secrets, any command, no network.
    "sandbox": Grants(
        preset="sandbox",
        fs=Files(read=("**", *_SECRETS), write=_ALL, delete=_ALL, execute=_ALL),
        commands=Allowed(_ALL),
        env=Variables(write=("*",)),
        **_HISTORY,
    ),
    # The same, and where code is fetched from. A package registry is for the project to name.
    "developer": Grants(
        preset="developer",
        fs=Files(read=("**", *_SECRETS), write=_ALL, delete=_ALL, execute=_ALL),
        commands=Allowed(_ALL),
        network=Allowed(_FORGE),
        env=Variables(read=("LANG", "LC_*", "TZ"), write=("*",)),
        **_HISTORY,
    ),
    # An agent under a supervisor, who alone rolls back and forks.
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
            f"there is no preset {name[:80]!r}", op="capabilities", fix_hints=[f"known: {', '.join(PRESETS)}"]
        )
    return found


def parse(text: str) -> Grants:
    """From TOML. What is not understood is refused: a misspelled deny would be none."""
    try:
        given = msgspec.convert(parse_toml(text), Grants)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise CapabilitiesInvalid(
            f"the capabilities can't be read: {error}",
            op="capabilities",
            fix_hints=["use the tables fs, commands, network and env: docs/workspace-tools.md has them all"],
        ) from None
    return given if given.preset is None else given.over(preset(given.preset))


def load(source: str | Path) -> Grants:
    """A preset by its name, or a file."""
    if str(source) in PRESETS:
        return PRESETS[str(source)]
    try:
        data = read_plain(Path(source), SIZE_LIMIT + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CapabilitiesInvalid(
            f"{str(source)[:200]!r} is neither a preset nor a file that can be read: {error}",
            op="capabilities",
            fix_hints=[f"known: {', '.join(PRESETS)}"],
        ) from None
    if len(data) > SIZE_LIMIT:
        raise CapabilitiesInvalid(f"{source} is larger than {SIZE_LIMIT} bytes", op="capabilities")
    return parse(text)


def _both(first: Any, second: Any) -> Any:
    kind = type(first)
    return kind(*(a + b for a, b in zip(msgspec.structs.astuple(first), msgspec.structs.astuple(second), strict=True)))
