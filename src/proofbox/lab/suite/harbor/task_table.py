"""Parses Harbor's `task.toml`: the supported fields, what cannot be provided here, and notes on everything else."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from proofbox.core.spec_files.positions import read_toml
from proofbox.core.spec_files.problems import Problems, invalid, toml_problem

MAX_TIMEOUT = 7 * 86_400.0
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?\s*", re.IGNORECASE)
_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
# The name becomes part of a path in the engine's API.
_IMAGE = re.compile(r"[A-Za-z0-9]+(?:(?:[._]|__|-+|[:/@])[A-Za-z0-9]+)*")
_STEP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MAX_STEPS = 100
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Note = Callable[[str], None]


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the agent's or the verifier's phase."""

    timeout: float = 600.0
    network: str | None = None
    env: dict[str, str] = {}


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    docker_image: str | None = None
    workdir: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    build_timeout: float = 600.0
    network: str | None = None
    env: dict[str, str] = {}


class StepTable(msgspec.Struct, frozen=True, kw_only=True):
    """One of `[[steps]]`. It inherits settings from the task."""

    name: str
    agent_timeout: float
    verifier_timeout: float
    env: dict[str, str] = {}
    min_reward: float | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    steps: tuple[StepTable, ...] = ()
    turn_rewards: str = "mean"
    tags: tuple[str, ...] = ()
    agent: Phase
    verifier: Phase
    environment: Environment
    solution_env: dict[str, str] = {}
    lacking: tuple[str, ...] = ()
    """What the task needs and a box does not provide."""


def read(text: str, note: Note) -> Table:
    """Parse the text. Raises `SuiteInvalid` if it is not TOML, or if a supported field has an invalid value."""
    try:
        values, positions = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise invalid("task.toml", [toml_problem(error, text)]) from None
    problems = Problems(positions)
    table = _Reader(values, problems, note).table()
    if problems.found:
        raise invalid("task.toml", problems.found)
    return table


class _Reader:
    def __init__(self, values: Mapping[str, Any], problems: Problems, note: Note) -> None:
        self._values = values
        self._problems = problems
        self._note = note
        self._lacking: list[str] = []

    def table(self) -> Table:
        for name in self._values:
            if name not in _TABLES:
                self._unknown((name,))
        tags = [*self._strings("metadata", "tags"), *self._strings("task", "keywords")]
        found = Table(
            name=self._get("task", "name", str) or "",
            tags=tuple(dict.fromkeys(each for each in tags if each)),
            agent=self._phase("agent"),
            verifier=self._phase("verifier"),
            environment=self._environment(),
            solution_env=self._env("solution"),
            turn_rewards=self._turn_rewards(),
        )
        found = msgspec.structs.replace(found, steps=tuple(self._steps(found)))
        for section, known in _KNOWN.items():
            for name in self._section(section):
                if name not in known:
                    self._unknown((section, name))
        return msgspec.structs.replace(found, lacking=tuple(self._lacking))

    def _turn_rewards(self) -> str:
        how = self._values.get("multi_step_reward_strategy", "mean")
        if how not in ("mean", "final"):
            self._wrong(("multi_step_reward_strategy",), f"{_words(how)} is not one of mean, final")
        return str(how)

    def _steps(self, task: Table) -> Iterator[StepTable]:
        steps = self._values.get("steps", [])
        if not isinstance(steps, list) or len(steps) > MAX_STEPS:
            self._wrong(("steps",), f"it must be a list of at most {MAX_STEPS} tables")
            return
        seen: set[str] = set()
        for step in steps:
            name = step.get("name") if isinstance(step, dict) else None
            if not isinstance(name, str) or not _STEP.fullmatch(name) or name in seen:
                self._wrong(("steps",), "every step needs its own name, of letters, digits, and . _ -")
                return
            seen.add(name)
            reader = _Reader(step, self._problems, self._note)
            least = step.get("min_reward")
            if isinstance(least, dict):
                self._lacking.append(f"step {name} has several minimum rewards, which are not applied")
            for section, known in _STEP_KNOWN.items():
                for unknown in reader._section(section).keys() - known:
                    self._unknown(("steps", section, unknown))
            for unknown in step.keys() - {"name", "min_reward", *_STEP_KNOWN}:
                self._unknown(("steps", unknown))
            yield StepTable(
                name=name,
                agent_timeout=min(reader._positive("agent", "timeout_sec") or task.agent.timeout, MAX_TIMEOUT),
                verifier_timeout=min(reader._positive("verifier", "timeout_sec") or task.verifier.timeout, MAX_TIMEOUT),
                env={**task.verifier.env, **reader._env("verifier")},
                min_reward=float(least) if isinstance(least, int | float) and not isinstance(least, bool) else None,
            )
            self._lacking += reader._lacking

    def _phase(self, section: str) -> Phase:
        timeout = self._positive(section, "timeout_sec") or 600.0
        if timeout > MAX_TIMEOUT:
            self._wrong((section, "timeout_sec"), f"{timeout:g} s is longer than {MAX_TIMEOUT:g}")
        if self._get(section, "user", str | int) is not None:
            self._note(f"{section}.user: ignored; commands run as the owner of the files")
        env = self._env(section) if section == "verifier" else {}
        return Phase(timeout=timeout, network=self._network(section), env=env)

    def _environment(self) -> Environment:
        if self._positive("environment", "gpus", least=0):
            self._lacking.append("it needs a GPU, which boxes do not provide")
        if self._get("environment", "mcp_servers", list):
            self._lacking.append("it configures MCP servers for its agent, which is not supported")
        if (self._get("environment", "os", str) or "linux") != "linux":
            self._wrong(("environment", "os"), "only Linux tasks are supported")
        image = self._get("environment", "docker_image", str)
        if image and not _IMAGE.fullmatch(image):
            self._wrong(("environment", "docker_image"), f"{image[:60]!r} is not a valid image name")
        memory = self._positive("environment", "memory_mb") or self._size("memory")
        storage = self._positive("environment", "storage_mb") or self._size("storage")
        return Environment(
            docker_image=image or None,
            workdir=self._get("environment", "workdir", str) or None,
            cpus=self._positive("environment", "cpus"),
            memory_mb=None if memory is None else max(1, round(memory)),
            storage_mb=None if storage is None else max(1, round(storage)),
            build_timeout=min(self._positive("environment", "build_timeout_sec") or 600.0, MAX_TIMEOUT),
            network=self._network("environment"),
            env=self._env("environment"),
        )

    def _network(self, section: str) -> str | None:
        """Return the network as written in a box policy; None if the section does not set it."""
        mode = self._get(section, "network_mode", str)
        hosts = self._strings(section, "allowed_hosts")
        internet = self._get(section, "allow_internet", bool)
        if mode == "allowlist" or (mode is None and hosts):
            return f"allow:{','.join(hosts)}" if hosts else "none"
        if mode is None:
            return None if internet is None else "full" if internet else "none"
        if mode not in ("public", "no-network"):
            self._wrong((section, "network_mode"), f"{mode[:40]!r} is not one of public, no-network, allowlist")
        return "full" if mode == "public" else "none"

    def _env(self, section: str) -> dict[str, str]:
        """Return literal values and defaults of templates; nothing is taken from this process's environment."""
        found: dict[str, str] = {}
        for name, value in (self._get(section, "env", dict) or {}).items():
            if not _NAME.fullmatch(name) or not isinstance(value, str):
                self._wrong((section, "env"), f"{name[:60]!r} must be a valid variable name with a string value")
                continue
            missing = [each[1] for each in _TEMPLATE.finditer(value) if each[2] is None]
            if missing:
                needs = f"{section}.env.{name} needs the host variable {missing[0]}"
                self._lacking.append(f"{needs}, which boxes do not receive")
            else:
                found[name] = _TEMPLATE.sub(lambda each: each[2], value)
        return found

    def _section(self, name: str) -> Mapping[str, Any]:
        value = self._values.get(name, {})
        if not isinstance(value, dict):
            self._wrong((name,), "must be a table")
            return {}
        return value

    def _get(self, section: str, name: str, kind: Any) -> Any:
        value = self._section(section).get(name)
        if value is not None and (not isinstance(value, kind) or (kind is not bool and isinstance(value, bool))):
            self._wrong((section, name), f"{_words(value)} has the wrong type")
            return None
        return value

    def _positive(self, section: str, name: str, least: float = 1e-9) -> Any:
        value = self._get(section, name, int | float)
        if value is not None and not least <= value < 1e12:
            self._wrong((section, name), f"{_words(value)} is out of range")
            return None
        return value

    def _size(self, name: str) -> float | None:
        """Parse a size such as `2G`, which older tasks use."""
        value = self._get("environment", name, str)
        found = _SIZE.fullmatch(value or "")
        if value is not None and found is None:
            self._wrong(("environment", name), f"{value[:40]!r} is not a size such as 512M or 2G")
        size = float(found[1]) * _MB[found[2].upper()] if found else None
        if size is not None and not size < 1e12:
            self._wrong(("environment", name), f"{_words(value)} is out of range")
            return None
        return size

    def _strings(self, section: str, name: str) -> list[str]:
        return [each for each in self._get(section, name, list) or () if isinstance(each, str)]

    def _unknown(self, path: tuple[str, ...]) -> None:
        self._note(f"task.toml: {'.'.join(path)[:120]} is not supported and was ignored")

    def _wrong(self, path: tuple[str, ...], message: str) -> None:
        self._problems.add(path, f"task.toml: {'.'.join(path)}: {message}")


def _words(value: object) -> str:
    """Format a value for an error message."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "an integer of many digits"  # Python refuses to format integers with thousands of digits
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return repr(str(value)[:60])


_STEP_KNOWN: dict[str, set[str]] = {"agent": {"timeout_sec"}, "verifier": {"timeout_sec", "env"}}
_TABLES = (
    *("version", "schema_version", "steps", "multi_step_reward_strategy"),
    *("task", "metadata", "agent", "verifier", "environment", "solution"),
)
_NETWORK = ("network_mode", "allowed_hosts")
_KNOWN: dict[str, tuple[str, ...]] = {
    "agent": ("timeout_sec", "user", *_NETWORK),
    "verifier": ("timeout_sec", "user", "env", *_NETWORK),
    "solution": ("env",),
    "environment": (
        *("docker_image", "workdir", "cpus", "memory_mb", "storage_mb", "memory", "storage", "env", *_NETWORK),
        *("build_timeout_sec", "gpus", "gpu_types", "mcp_servers", "os", "allow_internet"),
    ),
}
