"""Which of the caller's variables an agent and its commands get, and that nothing secret is among them.

Three lists. *Allowed* names go in when they are set: they say what language, time zone and terminal it is. Names that
the caller asks for go in as well. *Blocked* ones don't, asked for or not: keys of clouds and models, tokens, agents'
sockets, git's credential helpers, addresses of databases and the like, and whatever is called a secret, token or
password. A blocked one goes in only when it is *granted* by its exact name; and the variable that holds the model's key
never does, since the gateway outside adds it. A harmless name does not help: the value of a secret variable is refused
under any name.

The evidence has names, and no values.
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
    # git reads its configuration from these too, a credential helper included.
    *("GIT_CONFIG", "GITHUB_", "GH_", "GITLAB_", "BITBUCKET_", "CI_JOB_", "ACTIONS_", "RUNNER_"),
)
_SECRET_WORDS = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE|(?:API|ACCESS|AUTH)_?KEY|(?:^|_)(?:PWD_HASH|PASS|AUTH)(?:_|$)"
)
# Addresses of such services hold passwords. The variables are blocked, and so are their values under other names. The
# values are not redacted from texts: an address like redis://localhost is too common.
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
    """What is kept of it: names alone."""

    allowed: tuple[str, ...]
    asked: tuple[str, ...]
    granted: tuple[str, ...]
    withheld: tuple[str, ...]
    """Blocked ones, and allowed ones that hold a secret, which the caller has and the agent has not."""


class AgentEnvironment:
    """The variables for an agent, with the record of them. Silent about the values."""

    def __init__(self, values: Mapping[str, str], record: EnvironmentRecord) -> None:
        self.values = dict(values)
        self.record = record

    def __repr__(self) -> str:
        return f"<AgentEnvironment {', '.join(sorted(self.values)) or 'empty'}>"


@functools.lru_cache(maxsize=1024)  # the same names, for each session of a process
def is_secret(name: str) -> bool:
    """Whether what a variable of that name holds is a secret, by the name itself."""
    upper = name.upper()
    words = _SECRET_WORDS.search(upper) or SECRET_VARIABLE.search(upper) or _ADDRESS_WITH_PASSWORD.search(upper)
    return upper in BLOCKED or words is not None


def is_blocked(name: str) -> bool:
    """Whether it may be one: all that clouds, models and forges set is kept out, harmless or not."""
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
    """The environment of an agent. `asked` has `NAME`, whose value is the caller's, or `NAME=VALUE`.

    Raises `EnvPolicyRefused` for what must not go in; nothing is left out silently that was asked for.
    """
    source = dict(os.environ) if source is None else source
    granted = frozenset(grants)
    model = frozenset(model_keys)
    for name in granted:
        check_name(name)
        if name in model:
            raise _refused(name, "it is the model's key, which stays with the gateway outside the box", ())
        if name not in source:
            raise _refused(
                name, "it is granted, and you have no such variable", (f"set it, or leave out --grant {name}",)
            )
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
            hint = f"if the agent must have it, and whatever it runs: runtime try --grant {name}; no suite can"
            raise _refused(name, "its name is on the block list", (hint,))
        if not given and name not in source:
            raise _refused(name, "you have no such variable", (f"write {name}=VALUE, or leave it out",))
        values[name] = value if given else source[name]
        if name not in granted and _holds(values[name], secrets):
            raise _refused(name, "its value holds that of a variable on the block list", ("leave it out",))
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
    """The values that must not go in under any name."""
    found = [
        value
        for name, value in source.items()
        if (is_secret(name) or name in model) and name not in granted and len(value) >= MIN_SECRET
    ]
    return Redactor(found, patterns=())


def _holds(value: str, secrets: Redactor) -> bool:
    return secrets.contains_secret(value.encode("utf-8", "surrogateescape"))


def check_name(name: str) -> None:
    """Raises `EnvPolicyRefused` for what no variable is called."""
    if not _NAME.fullmatch(name):
        raise EnvPolicyRefused(
            f"{name[:60]!r} is no variable's name",
            op="environment",
            fix_hints=["name variables one by one, without patterns"],
            details={"variable": name[:60]},
        )


def _refused(name: str, why: str, hints: Iterable[str]) -> EnvPolicyRefused:
    return EnvPolicyRefused(
        f"{name} does not enter a box: {why}", op="environment", fix_hints=tuple(hints), details={"variable": name}
    )
