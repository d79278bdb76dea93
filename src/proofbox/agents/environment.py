"""The environment variables that an agent and its commands receive, without secrets.

- *Allowed* variables (language, time zone, terminal) are passed on if they are set.
- Variables that the caller *asks* for are passed on too, unless they are blocked.
- *Blocked* variables are not passed on, even if the caller asks for them: keys of clouds and models, tokens, sockets of
  SSH and GPG agents, git's credential helpers, database addresses, and any name that contains a word such as secret,
  token or password.
- A blocked variable is passed on only if it is *granted* by its exact name. The variable that holds the model's key
  can't be granted, because the gateway outside the box adds the key.

The value of a secret variable is refused under any other name as well. The evidence contains names, never values.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping

import msgspec

from proofbox.core.redaction.patterns import SECRET_VARIABLE
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.redaction.spellings import MIN_SECRET
from proofbox.errors import EnvPolicyRefused

ALLOWED = frozenset({"LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR", "SOURCE_DATE_EPOCH"})
ALLOWED_PREFIXES = ("LC_",)

BLOCKED = frozenset(
    {
        *("SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_ASKPASS", "GPG_AGENT_INFO", "GNUPGHOME"),
        *("GIT_ASKPASS", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_CREDENTIAL_HELPER", "NETRC", "CURL_NETRC"),
        *("KUBECONFIG", "DOCKER_CONFIG", "DOCKER_AUTH_CONFIG", "DOCKER_HOST", "DBUS_SESSION_BUS_ADDRESS"),
        *("DATABASE_URL", "REDIS_URL", "MONGODB_URI", "PGPASSFILE", "NPM_CONFIG_USERCONFIG", "PIP_INDEX_URL"),
        *("UV_INDEX_URL", "PIP_EXTRA_INDEX_URL", "BOTO_CONFIG", "CLOUDSDK_CONFIG", "XAUTHORITY"),
    }
)
BLOCKED_PREFIXES = (
    *("AWS_", "AZURE_", "ARM_", "GOOGLE_", "GCP_", "GCLOUD_", "CLOUDFLARE_", "DIGITALOCEAN_", "VAULT_", "TF_VAR_"),
    *("OPENAI_", "ANTHROPIC_", "CLAUDE_", "CODEX_", "GEMINI_", "MISTRAL_", "OPENROUTER_", "HF_", "HUGGING_FACE_"),
    # git reads its configuration from GIT_CONFIG_*, including a credential helper.
    *("GIT_CONFIG", "GITHUB_", "GH_", "GITLAB_", "BITBUCKET_", "CI_JOB_", "ACTIONS_", "RUNNER_"),
)
_SECRET_WORDS = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE|(?:API|ACCESS|AUTH)_?KEY|(?:^|_)(?:PWD_HASH|PASS|AUTH)(?:_|$)"
)
# Addresses of these services often contain passwords. The variables are blocked, and so are their values under other
# names. The values are not redacted from text, because an address such as redis://localhost is too common.
_SERVICES = (
    r"DB|DATABASE|SQL|SQLALCHEMY|POSTGRES|POSTGRESQL|PG|MYSQL|MARIADB|MSSQL|ORACLE|MONGO|MONGODB|REDIS|VALKEY|CLICKHOUSE"
    r"|COUCHDB|COUCHBASE|CASSANDRA|NEO4J|ELASTIC|ELASTICSEARCH|OPENSEARCH|AMQP|CLOUDAMQP|RABBITMQ|BROKER|NATS|KAFKA"
    r"|MEMCACHED|SMTP|MAIL|EMAIL|LDAP|JDBC|ODBC|CACHE|QUEUE"
)
_ADDRESS_WITH_PASSWORD = re.compile(
    rf"(?:^|_)(?:DSN|CONN(?:ECTION)?_?STR(?:ING)?|(?:{_SERVICES})[0-9]*_(?:\w{{1,40}}_)?UR[LI])S?(?:_|$)"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvironmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded part of an environment: names only."""

    allowed: tuple[str, ...]
    asked: tuple[str, ...]
    granted: tuple[str, ...]
    withheld: tuple[str, ...]
    """Variables of the caller that the agent did not receive: blocked ones, and allowed ones that hold a secret."""


class AgentEnvironment:
    """The variables for an agent, and their record. The representation does not show values."""

    def __init__(self, values: Mapping[str, str], record: EnvironmentRecord) -> None:
        self.values = dict(values)
        self.record = record

    def __repr__(self) -> str:
        return f"<AgentEnvironment {', '.join(sorted(self.values)) or 'empty'}>"


@functools.lru_cache(maxsize=1024)  # every session of a process checks the same names
def is_secret(name: str) -> bool:
    """Return whether the name indicates that the variable holds a secret."""
    upper = name.upper()
    words = _SECRET_WORDS.search(upper) or SECRET_VARIABLE.search(upper) or _ADDRESS_WITH_PASSWORD.search(upper)
    return upper in BLOCKED or words is not None


def is_blocked(name: str) -> bool:
    """Return whether the variable is blocked: a secret, or any variable of a cloud, model or code host."""
    return is_secret(name) or name.upper().startswith(BLOCKED_PREFIXES)


def is_allowed(name: str) -> bool:
    return not is_blocked(name) and (name in ALLOWED or name.startswith(ALLOWED_PREFIXES))


def decide_environment(
    asked: Iterable[str] = (),
    *,
    grants: Iterable[str] = (),
    model_keys: Iterable[str] = (),
    source: Mapping[str, str] | None = None,
) -> AgentEnvironment:
    """Return the environment of an agent. `asked` contains `NAME` (with the caller's value) or `NAME=VALUE` entries.

    Raises `EnvPolicyRefused` for a variable that must not be passed on; a requested variable is never dropped silently.
    """
    source = dict(os.environ) if source is None else source
    granted = frozenset(grants)
    model = frozenset(model_keys)
    for name in granted:
        check_name(name)
        if name in model:
            raise _refused(name, "it is the model's key, which stays with the gateway outside the box", ())
        if name not in source:
            raise _refused(name, "it is granted but not set", (f"set the variable, or omit --grant {name}",))
    secrets = _known_secrets(granted, model, source)
    values = {
        name: value
        for name, value in source.items()
        if is_allowed(name) and name not in model and not _holds(value, secrets)
    }
    wanted: list[str] = []
    for each in asked:
        name, given, value = each.partition("=")
        check_name(name)
        if name in model:
            raise _refused(name, "it is the model's key, which stays with the gateway outside the box", ())
        if is_blocked(name) and name not in granted:
            hint = f"to give it to the agent and its commands: runtime try --grant {name} (not available for suites)"
            raise _refused(name, "its name is on the block list", (hint,))
        if not given and name not in source:
            raise _refused(name, "it is not set", (f"write {name}=VALUE, or omit it",))
        values[name] = value if given else source[name]
        if name not in granted and _holds(values[name], secrets):
            raise _refused(name, "its value contains that of a variable on the block list", (f"omit {name}",))
        wanted.append(name)
    values |= {name: source[name] for name in granted}
    record = EnvironmentRecord(
        allowed=tuple(sorted(set(values) - set(wanted) - granted)),
        asked=tuple(sorted(set(wanted) - granted)),
        granted=tuple(sorted(granted)),
        withheld=tuple(
            sorted(name for name in source if (is_blocked(name) or is_allowed(name)) and name not in values)
        ),
    )
    return AgentEnvironment(values, record)


def _known_secrets(granted: frozenset[str], model: frozenset[str], source: Mapping[str, str]) -> Redactor:
    """Return a redactor for the values that must not be passed on under any name."""
    return _redactor_of(
        frozenset(
            value
            for name, value in source.items()
            if (is_secret(name) or name in model) and name not in granted and len(value) >= MIN_SECRET
        )
    )


@functools.lru_cache(maxsize=4)  # every attempt of a run asks for the same values
def _redactor_of(secrets: frozenset[str]) -> Redactor:
    return Redactor(secrets, patterns=())


def _holds(value: str, secrets: Redactor) -> bool:
    return secrets.contains_secret(value.encode("utf-8", "surrogateescape"))


def check_name(name: str) -> None:
    """Raise `EnvPolicyRefused` for a malformed variable name."""
    if not _NAME.fullmatch(name):
        raise EnvPolicyRefused(
            f"{name[:60]!r} is not a variable name",
            op="environment",
            fix_hints=["list variables one by one; patterns are not supported"],
            details={"variable": name[:60]},
        )


def _refused(name: str, why: str, hints: Iterable[str]) -> EnvPolicyRefused:
    return EnvPolicyRefused(
        f"{name} can't be passed to the box: {why}",
        op="environment",
        fix_hints=tuple(hints),
        details={"variable": name},
    )
