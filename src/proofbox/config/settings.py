"""Defaults from files: a project's `.proofbox/config.toml`, and the user's own.

A flag overrides both, and the project's file overrides the user's.

Commands in a box may be able to write to the project's file. Settings that only narrow a box therefore apply as they
are. Settings that widen it (no sandbox at all, the network, mounts, variables, and anything laxer than the user's own
settings) apply only in a version that the user has trusted with `proofbox init`. Otherwise the start fails: ignoring
them silently would be as wrong as applying them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from proofbox.config.engine import EngineSettings
from proofbox.config.mounts import mount_source
from proofbox.core.allowlist import parse_network
from proofbox.core.dirs import config_dir, state_dir
from proofbox.core.documents import require_version, stored
from proofbox.core.files.atomic import write_document
from proofbox.core.files.plain import read_inside, read_plain
from proofbox.core.nearest import nearest
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.core.size import Size, megabytes
from proofbox.errors import PolicyRefused, RequestInvalid, UsageError

PROJECT_FILE = Path(".proofbox/config.toml")
SIZE_LIMIT = 64 << 10
TRUSTED = "proofbox.trusted/1"
NAMED_RUNTIMES: Mapping[str, tuple[str, ...]] = {"acp": ("env",), "process": ()}
"""Runtimes that a file can configure several times, each with a name, and those of their settings that are tables."""


@stored("config.toml", at="PROJECT/.proofbox/config.toml and CONFIG/config.toml")
class Settings(msgspec.Struct, frozen=True):
    """Defaults for boxes and agents. They are named like the flags. A flag takes precedence, then the project's file.

    For example:

        proofbox.Sandboxes(settings=proofbox.Settings(provider="bubblewrap", network="none", memory="2g"))
    """

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
    """The maximum that a box can write, with access `overlay`: MB, or text with a unit."""
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    """Names of the caller's variables that every command gets."""
    strategies: tuple[str, ...] = ()
    """The agent runtimes to try, in this order."""
    runtimes: dict[str, dict[str, Any]] = {}
    """The settings of each agent runtime, as defined by that runtime."""
    provision: str | None = None
    """A script in the project that prepares its boxes, once: see `provisioning.py`."""
    engine: EngineSettings | None = None
    """Where the attempts of suites and campaigns run."""
    vm_template: bool | None = None
    """Whether `vm` clones machines from a template, which it boots once, instead of booting each of them."""

    def over(self, other: Settings) -> Settings:
        """Return these settings, completed by those of `other`."""
        own = {name: value for name, value in msgspec.structs.asdict(self).items() if value not in (None, (), {})}
        runtimes = {id: other.runtimes.get(id, {}) | self.runtimes.get(id, {}) for id in other.runtimes | self.runtimes}
        return msgspec.structs.replace(other, **own | {"runtimes": runtimes})

    def widening(self, users: Settings) -> list[str]:
        """List the settings that give a box more than the user's own settings, or the defaults, do."""
        found = [name for name in ("mounts", "env", "provision") if getattr(self, name)]
        # They name programs to start and endpoints that receive a key.
        found += [f"[runtimes.{id}]" for id, values in self.runtimes.items() if values]
        if self.engine is not None and not self.engine.is_local:  # attempts, with their files, go to a cluster
            found.append(f"[engine] name = {toml_value(self.engine.name)}")
        if _differs(self.provider, users.provider or ("auto" if self.provider == "off" else None)):
            found.append(f"provider = {toml_value(self.provider)}")
        if _is_wider(self.network, users.network):
            found.append(f"network = {toml_value(self.network)}")
        # Different images or runtimes can't be compared for strictness, and no image means the host's own programs.
        found += [
            f"{name} = {toml_value(getattr(self, name))}"
            for name in ("image", "runtime")
            if getattr(self, name) not in (None, getattr(users, name))
        ]
        # An overlay does not change the project, like `ro`.
        if self.access == "rw" and users.access not in (None, "rw"):
            found.append('access = "rw"')
        for name in ("cpus", "memory", "pids", "disk"):
            own, limit = getattr(self, name), getattr(users, name)
            if own is not None and limit is not None and _amount(own, name) > _amount(limit, name):
                found.append(f"{name} = {toml_value(own)}")
        return found


@stored(TRUSTED, at="STATE/trusted.json")
class _Trusted(msgspec.Struct, frozen=True):
    """The versions of projects' settings that the user has trusted."""

    projects: dict[str, str] = {}
    """By a project's path: the digest of its config.toml, and of its provision script."""
    mounts: dict[str, dict[str, str | None]] = {}
    """By a project's path: the path that each mount led to, by the mount as written; null if it did not exist."""
    schema_version: str = TRUSTED


def load(project: Path) -> Settings:
    """Load the defaults for boxes over this project; fail if its file widens a box and is not trusted."""
    path = project / PROJECT_FILE
    data = _read(PROJECT_FILE, project)
    own = _parse(data, path) if data is not None else Settings()
    users = load_users()
    widening = own.widening(users)
    if data is not None and widening and not is_trusted(project, data, own):
        raise PolicyRefused(
            f"{path} asks for {', '.join(widening)}, and you have not trusted this version of it",
            op="config",
            fix_hints=[f"read it, then run: proofbox init --trust --project {project}"],
            details={"path": str(path), "asks_for": widening},
        )
    _refuse_moved_mounts(project, own)
    return own.over(users)


def script(project: Path, settings: Settings, *, given: bool) -> bytes | None:
    """Return the content of the project's provision script, if the user has trusted exactly this content.

    Settings `given` by the caller need no trust.
    """
    if settings.provision is None:
        return None
    if given:
        return _read_script(project, settings.provision)
    data = _read(PROJECT_FILE, project) or b""
    found = _read_script(project, settings.provision)
    if _agreed().projects.get(str(project)) != _fingerprint(data, found):
        raise PolicyRefused(
            f"{settings.provision} changed since you trusted it",
            op="config",
            fix_hints=[f"read it, then run: proofbox init --trust --project {project}"],
        )
    return found


def trust(project: Path) -> None:
    """Trust the current version of the project's file, and no later one."""
    data = _read(PROJECT_FILE, project)
    if data is None:
        raise UsageError(f"{project} has no {PROJECT_FILE}", op="config", fix_hints=["create one: proofbox init"])
    settings = _parse(data, project / PROJECT_FILE)
    before, key = _agreed(), str(project)
    agreed = _Trusted(
        projects={**before.projects, key: _fingerprint(data, script(project, settings, given=True))},
        mounts={**before.mounts, key: {each: mount_source(project, each) for each in settings.mounts}},
    )
    write_document(_trusted_file(), msgspec.json.encode(agreed))


def is_trusted(project: Path, data: bytes, settings: Settings) -> bool:
    """Return whether the user has trusted this version of the file and of the script that it names."""
    return _agreed().projects.get(str(project)) == _fingerprint(data, script(project, settings, given=True))


def write(project: Path, settings: Settings) -> Path:
    """Write the project's file and trust it, since the caller knows its content."""
    from proofbox.config.project_files import write_project_file

    path = project / PROJECT_FILE
    script(project, settings, given=True)  # a missing script is reported before anything is written
    write_project_file(project, PROJECT_FILE, render(settings).encode())
    trust(project)
    return path


def render(settings: Settings) -> str:
    lines = ["# Defaults for `proofbox` in this project. Flags override them."]
    for name, value in msgspec.structs.asdict(settings).items():
        if value not in (None, (), {}) and name not in ("runtimes", "engine"):
            lines.append(f"{name} = {toml_value(value)}")
    if settings.engine is not None:
        members = msgspec.to_builtins(settings.engine).items()
        lines += ["", "[engine]", *(f"{name} = {toml_value(value)}" for name, value in members if value is not None)]
    for id, values in settings.runtimes.items():
        lines += [
            "",
            f"[runtimes.{toml_value(id)}]",
            *(f"{toml_value(name)} = {toml_value(value)}" for name, value in values.items()),
        ]
    return "\n".join(lines) + "\n"


def load_users() -> Settings:
    """Load the user's own settings, without those of any project."""
    path = config_dir() / "config.toml"
    data = _read(path)
    users = _parse(data, path) if data is not None else Settings()
    if users.provision is not None:
        raise UsageError(
            f"{path}: `provision` is only allowed in a project's {PROJECT_FILE}",
            op="config",
            fix_hints=[f"move it to the project's {PROJECT_FILE}"],
        )
    return users


def _is_wider(own: str | None, users: str | None) -> bool:
    """Return whether a network reaches more than the user's own. Rules are compared as they are spelled."""
    mode, hosts = parse_network(own)
    limit, allowed = parse_network(users)
    if mode in (None, "none") or limit == "full":
        return False
    return mode == "full" or limit != "allow" or not set(hosts) <= set(allowed)


def _amount(limit: float | str, name: str) -> float:
    return megabytes(limit, name) if isinstance(limit, str) else limit


def _differs(own: str | None, users: str | None) -> bool:
    return None not in (own, users) and own != users


def toml_value(value: Any) -> str:
    """Encode a value as TOML. It is the same as JSON, except for objects and null (which no setting uses)."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_value(name)} = {toml_value(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(toml_value(member) for member in value) + "]"
    return msgspec.json.encode(value).decode()


def _read_script(project: Path, name: str) -> bytes:
    found = _read(Path(name), project)
    if found is None:
        raise UsageError(
            f"provision: {project / name} does not exist", op="config", fix_hints=["name a file in the project"]
        )
    return found


def _fingerprint(data: bytes, script: bytes | None) -> str:
    import hashlib

    parts = [hashlib.sha256(data), *([hashlib.sha256(script)] if script is not None else [])]
    return "+".join(part.hexdigest() for part in parts)


def _read(path: Path, project: Path | None = None) -> bytes | None:
    """Return the content of one of the user's files or, with `project`, of a file in it; None if it does not exist."""
    shown = path if project is None else project / path
    try:
        data = read_plain(path, SIZE_LIMIT + 1) if project is None else read_inside(project, path, SIZE_LIMIT + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "the path contains a NUL"
        raise UsageError(f"{shown} can't be read: {why}", op="config", fix_hints=["fix or remove it"]) from None
    if len(data) > SIZE_LIMIT:
        raise UsageError(f"{shown} is larger than {SIZE_LIMIT >> 10} KiB", op="config", fix_hints=["shorten it"])
    return data


def _with_named_runtimes(settings: Settings) -> Settings:
    """Return the settings with each table `[runtimes.ID.NAME]` as the table of the runtime `ID.NAME`."""
    tables: dict[str, dict[str, Any]] = {}
    for id, table in settings.runtimes.items():
        own = NAMED_RUNTIMES.get(id, tuple(table))
        names = [name for name, value in table.items() if name not in own and isinstance(value, dict)]
        tables |= {f"{id}.{name}": table[name] for name in names}
        if len(names) < len(table) or not names:
            tables[id] = {name: value for name, value in table.items() if name not in names}
    return msgspec.structs.replace(settings, runtimes=tables)


def _parse(data: bytes, path: Path) -> Settings:
    import tomllib

    from proofbox.core.parsing.toml import parse_toml

    try:
        values: dict[str, Any] = parse_toml(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", op="config", fix_hints=["fix or remove it"]) from None
    _refuse_unknown(path, "", values, Settings.__struct_fields__)
    _refuse_unknown(path, "engine.", values.get("engine"), EngineSettings.__struct_fields__)
    try:
        settings = _with_named_runtimes(msgspec.convert(values, Settings))
        parse_network(settings.network)
        for name in ("memory", "disk"):
            if (size := getattr(settings, name)) is not None:
                megabytes(size, name)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}", op="config", fix_hints=["see: proofbox init --help"]) from None
    except (RequestInvalid, UsageError) as error:
        hints = [*error.fix_hints, "see: proofbox init --help"]
        raise UsageError(f"{path}: {error.message}", op="config", fix_hints=hints) from None
    return settings


def _refuse_unknown(path: Path, prefix: str, table: object, known: tuple[str, ...]) -> None:
    for name in table if isinstance(table, dict) else ():
        if name not in known:
            what = f"{path}: unknown setting {(prefix + name)[:60]!r}"
            raise UsageError(what, op="config", fix_hints=[nearest(name, known)])


def _trusted_file() -> Path:
    return state_dir() / "trusted.json"


def _agreed() -> _Trusted:
    """Read the trusted versions. With a malformed file, nothing is trusted. Raises VersionUnknown."""
    try:
        data = _trusted_file().read_bytes()
        require_version(data, TRUSTED, _trusted_file())
        return parse_json(data, _Trusted)
    except (OSError, msgspec.DecodeError):
        return _Trusted()


def _refuse_moved_mounts(project: Path, settings: Settings) -> None:
    """Refuse a mount whose source no longer leads to the path that the user trusted."""
    agreed = _agreed().mounts.get(str(project), {}) if settings.mounts else {}
    for each in settings.mounts:
        then, now = agreed.get(each), mount_source(project, each)
        if now is not None and now != then:
            before = f"led to {then}" if then is not None else "did not exist"
            raise PolicyRefused(
                f"{project / PROJECT_FILE}: mount {each!r} {before} when you trusted it, and now leads to {now}",
                op="config",
                fix_hints=[f"if that is intended: proofbox init --trust --project {project}"],
                details={"path": str(project / PROJECT_FILE), "mount": each, "agreed": then, "found": now},
            )
