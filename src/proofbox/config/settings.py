"""Defaults from files: a project's `.proofbox/config.toml`, and the user's own.

A flag wins over both, the project over the user.

A project can be written by the very commands it is the project of. What only narrows a box is taken from its file as
it is; what widens one (no sandbox at all, the network, mounts, variables, and whatever is laxer than the user's own
settings) counts only in a version that the user has trusted by `proofbox init`, and otherwise stops the start: to
ignore it silently would be as wrong as to obey it.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from proofbox.config.mounts import mount_source
from proofbox.config.project_files import write_project_file
from proofbox.core.allowlist import parse_network
from proofbox.core.dirs import config_dir, state_dir
from proofbox.core.documents import stored
from proofbox.core.files.atomic import write_document
from proofbox.core.files.plain import read_plain
from proofbox.core.nearest import nearest
from proofbox.core.size import Size, megabytes
from proofbox.core.toml import parse_toml
from proofbox.errors import PolicyRefused, RequestInvalid, UsageError

PROJECT_FILE = Path(".proofbox/config.toml")
SIZE_LIMIT = 64 << 10
TRUSTED = "proofbox.trusted/1"


@stored("config.toml", at="PROJECT/.proofbox/config.toml and CONFIG/config.toml")
class Settings(msgspec.Struct, frozen=True):
    """Defaults for boxes and agents. The names are those of the flags; a flag wins, then the project's file."""

    provider: str | None = None
    image: str | None = None
    runtime: str | None = None
    """The engine's runtime for containers, such as `runsc` for gVisor."""
    network: str | None = None
    access: Literal["rw", "ro", "overlay"] | None = None
    cpus: float | None = None
    memory: Size | None = None
    pids: int | None = None
    disk: Size | None = None
    """The most that a box may write, with access `overlay`: MB, or text with a unit."""
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    """Names of the caller's variables that every command gets."""
    strategies: tuple[str, ...] = ()
    """The agent runtimes to try, in this order."""
    runtimes: dict[str, dict[str, Any]] = {}
    """Of each agent runtime its own settings: which ones there are is its to say."""
    provision: str | None = None
    """A script of the project that prepares its boxes, once: see `provisioning.py`."""

    def over(self, other: Settings) -> Settings:
        """These, and the other's where these say nothing."""
        own = {name: value for name, value in msgspec.structs.asdict(self).items() if value not in (None, (), {})}
        runtimes = {id: other.runtimes.get(id, {}) | self.runtimes.get(id, {}) for id in other.runtimes | self.runtimes}
        return msgspec.structs.replace(other, **own | {"runtimes": runtimes})

    def widening(self, users: Settings) -> list[str]:
        """What in here gives a box more than it would have by the user's own settings, or else by default."""
        found = [name for name in ("mounts", "env", "provision") if getattr(self, name)]
        # They name programs to start and endpoints to send a key to.
        found += [f"[runtimes.{id}]" for id, said in self.runtimes.items() if said]
        if _differs(self.provider, users.provider or ("auto" if self.provider == "off" else None)):
            found.append(f"provider = {_toml(self.provider)}")
        if _is_wider(self.network, users.network):
            found.append(f"network = {_toml(self.network)}")
        # Whether another is as strict nobody can say.
        found += [
            f"{name} = {_toml(getattr(self, name))}"
            for name in ("image", "runtime")
            if _differs(getattr(self, name), getattr(users, name))
        ]
        # An overlay leaves the project alone, as `ro` does.
        if self.access == "rw" and users.access not in (None, "rw"):
            found.append('access = "rw"')
        for name in ("cpus", "memory", "pids", "disk"):
            own, limit = getattr(self, name), getattr(users, name)
            if own is not None and limit is not None and _amount(own, name) > _amount(limit, name):
                found.append(f"{name} = {_toml(own)}")
        return found


@stored(TRUSTED, at="STATE/trusted.json")
class _Trusted(msgspec.Struct, frozen=True):
    """The versions of projects' settings that the user has agreed to."""

    projects: dict[str, str] = {}
    """Of a project's path the digest of its config.toml, and of the script that prepares its boxes."""
    mounts: dict[str, dict[str, str | None]] = {}
    """Of a project's path where each of its mounts led then, by the mount as it is written; null: it did not exist."""
    schema_version: str = TRUSTED


def load(project: Path) -> Settings:
    """The defaults for boxes over this project; an error where a file asks for what nobody has agreed to."""
    path = project / PROJECT_FILE
    data = _read(path)
    own = _parse(data, path) if data is not None else Settings()
    users = load_users()
    widening = own.widening(users)
    if data is not None and widening and not is_trusted(project, data, own):
        raise PolicyRefused(
            f"{path} asks for {', '.join(widening)}, and you have not agreed to this version of it",
            op="config",
            fix_hints=[f"read it, and then: proofbox init --trust --project {project}"],
            details={"path": str(path), "asks_for": widening},
        )
    _refuse_moved_mounts(project, own)
    return own.over(users)


def script(project: Path, settings: Settings, *, given: bool) -> bytes | None:
    """The bytes of the script that prepares this project's boxes: those the user has agreed to, and no others.

    Settings that a caller has `given` are the caller's own word.
    """
    if settings.provision is None:
        return None
    if given:
        return _read_script(project, settings.provision)
    data = _read(project / PROJECT_FILE) or b""
    found = _read_script(project, settings.provision)
    if _agreed().projects.get(str(project)) != _fingerprint(data, found):
        raise PolicyRefused(
            f"{settings.provision} changed since you agreed to it",
            op="config",
            fix_hints=[f"read it, and then: proofbox init --trust --project {project}"],
        )
    return found


def trust(project: Path) -> None:
    """Agree to the project's file as it is now, and to no later version of it."""
    data = _read(project / PROJECT_FILE)
    if data is None:
        raise UsageError(f"{project} has no {PROJECT_FILE}", op="config", fix_hints=["make one: proofbox init"])
    settings = _parse(data, project / PROJECT_FILE)
    before, key = _agreed(), str(project)
    agreed = _Trusted(
        projects={**before.projects, key: _fingerprint(data, script(project, settings, given=True))},
        mounts={**before.mounts, key: {each: mount_source(project, each) for each in settings.mounts}},
    )
    write_document(_trusted_file(), msgspec.json.encode(agreed))


def is_trusted(project: Path, data: bytes, settings: Settings) -> bool:
    """Whether the user has agreed to this version of the file, and of the script that it names."""
    return _agreed().projects.get(str(project)) == _fingerprint(data, script(project, settings, given=True))


def write(project: Path, settings: Settings) -> Path:
    """Write the project's file, and trust it: who writes it by this function has seen it."""
    path = project / PROJECT_FILE
    script(project, settings, given=True)  # one that is not there is said before anything is written
    write_project_file(project, PROJECT_FILE, render(settings).encode())
    trust(project)
    return path


def render(settings: Settings) -> str:
    lines = ["# Defaults for `proofbox` in this project. A flag wins over what is here."]
    for name, value in msgspec.structs.asdict(settings).items():
        if value not in (None, (), {}) and name != "runtimes":
            lines.append(f"{name} = {_toml(value)}")
    for id, said in settings.runtimes.items():
        lines += ["", f"[runtimes.{_toml(id)}]", *(f"{_toml(name)} = {_toml(value)}" for name, value in said.items())]
    return "\n".join(lines) + "\n"


def load_users() -> Settings:
    """Load the user's own settings, without those of any project."""
    path = config_dir() / "config.toml"
    data = _read(path)
    users = _parse(data, path) if data is not None else Settings()
    if users.provision is not None:
        raise UsageError(
            f"{path}: provision is for a project's own {PROJECT_FILE}", op="config", fix_hints=["move it there"]
        )
    return users


def _is_wider(own: str | None, users: str | None) -> bool:
    """Whether a network reaches more than the user's own. Another spelling of a rule counts as another rule."""
    mode, hosts = parse_network(own)
    limit, allowed = parse_network(users)
    if mode in (None, "none") or limit == "full":
        return False
    return mode == "full" or limit != "allow" or not set(hosts) <= set(allowed)


def _amount(limit: float | str, name: str) -> float:
    return megabytes(limit, name) if isinstance(limit, str) else limit


def _differs(own: str | None, users: str | None) -> bool:
    return None not in (own, users) and own != users


def _toml(value: Any) -> str:
    """A JSON value is a TOML value, but for objects (and null, which no setting is)."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(name)} = {_toml(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_toml(member) for member in value) + "]"
    return msgspec.json.encode(value).decode()


def _read_script(project: Path, name: str) -> bytes:
    path = project / name
    found = _read(path)
    if found is None:
        raise UsageError(f"provision: {path} is not there", op="config", fix_hints=["name a file of the project"])
    return found


def _fingerprint(data: bytes, script: bytes | None) -> str:
    parts = [hashlib.sha256(data), *([hashlib.sha256(script)] if script is not None else [])]
    return "+".join(part.hexdigest() for part in parts)


def _read(path: Path) -> bytes | None:
    try:
        data = read_plain(path, SIZE_LIMIT + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"{path} can't be read: {error.strerror}", op="config", fix_hints=["mend or remove it"]
        ) from None
    if len(data) > SIZE_LIMIT:
        raise UsageError(f"{path} is larger than {SIZE_LIMIT >> 10} KiB", op="config", fix_hints=["mend or remove it"])
    return data


def _parse(data: bytes, path: Path) -> Settings:
    try:
        values: dict[str, Any] = parse_toml(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}", op="config", fix_hints=["mend it, or remove it"]) from None
    known = Settings.__struct_fields__
    for name in values:
        if name not in known:
            raise UsageError(
                f"{path}: there is no setting {name[:60]!r}", op="config", fix_hints=[nearest(name, known)]
            )
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}", op="config", fix_hints=["see: proofbox init --help"]) from None
    try:
        parse_network(settings.network)
        for name in ("memory", "disk"):
            if (size := getattr(settings, name)) is not None:
                megabytes(size, name)
    except RequestInvalid as error:
        hints = [*error.fix_hints, "see: proofbox init --help"]
        raise UsageError(f"{path}: {error.message}", op="config", fix_hints=hints) from None
    return settings


def _trusted_file() -> Path:
    return state_dir() / "trusted.json"


def _agreed() -> _Trusted:
    """Whatever is wrong with this file, nothing is trusted then."""
    try:
        found = msgspec.json.decode(_trusted_file().read_bytes(), type=_Trusted)
    except (OSError, msgspec.DecodeError, RecursionError):
        return _Trusted()
    return found if found.schema_version == TRUSTED else _Trusted()


def _refuse_moved_mounts(project: Path, settings: Settings) -> None:
    """Refuse a mount whose source leads elsewhere than it did when the user agreed to it."""
    agreed = _agreed().mounts.get(str(project), {}) if settings.mounts else {}
    for each in settings.mounts:
        then, now = agreed.get(each), mount_source(project, each)
        if now is not None and now != then:
            before = f"led to {then}" if then is not None else "led nowhere"
            raise PolicyRefused(
                f"{project / PROJECT_FILE}: mount {each!r} {before} when you agreed to it, and leads to {now} now",
                op="config",
                fix_hints=[f"if that is meant: proofbox init --trust --project {project}"],
                details={"path": str(project / PROJECT_FILE), "mount": each, "agreed": then, "found": now},
            )
