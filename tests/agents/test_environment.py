"""Tests of the agent's environment: allowed and blocked variables, grants, and secrets under other names."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.environment import decide_environment, is_blocked, is_secret
from proofbox.errors import EnvPolicyRefused

SECRET = "s3cret-value-of-mine"
NAMES = ("OPENAI_API_KEY", "AWS_SESSION_TOKEN", "GH_TOKEN", "SSH_AUTH_SOCK", "MY_PASSWORD", "db_secret")


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        *("AZURE_CLIENT_SECRET", "GOOGLE_APPLICATION_CREDENTIALS", "GITHUB_TOKEN", "GH_TOKEN", "SSH_AUTH_SOCK"),
        *("GIT_ASKPASS", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0", "GIT_CONFIG_PARAMETERS"),
        *(
            "MYSQL_PWD",
            "SLACK_WEBHOOK_URL",
            "SLACK_WEBHOOK",
            "POSTGRES_URL",
            "POSTGRES_PRISMA_URL",
            "DB_DSN",
            "SENTRY_DSN",
        ),
        *("MONGO_URI", "SQLALCHEMY_DATABASE_URI", "CELERY_BROKER_URL", "AMQP_URL", "SMTP_URL", "JDBC_URL", "redis_url"),
        *("AZURE_SQL_CONNECTIONSTRING", "DB_CONNECTION_STRING", "APP_CONN_STR", "HEROKU_POSTGRESQL_COBALT_URL"),
        *("MY_SECRET", "secret_sauce", "DB_PASSWORD", "X_TOKEN_Y", "TOKENS", "PGPASSWORD", "KUBECONFIG", "SIGNING_KEY"),
    ],
)
def test_secret_variables_are_blocked_even_when_requested(name: str) -> None:
    source = {name: SECRET, "LANG": "C.UTF-8"}
    silent = decide_environment(source=source)
    assert silent.values == {"LANG": "C.UTF-8"}
    assert silent.record.withheld == (name,)
    for asked in (name, f"{name}=other"):
        with pytest.raises(EnvPolicyRefused) as raised:
            decide_environment([asked], source=source)
        assert raised.value.code == "RUNTIME_ENV_POLICY"
        assert f"--grant {name}" in raised.value.fix_hints[0]
        assert SECRET not in str(raised.value.as_dict())


@pytest.mark.parametrize(
    "name",
    [
        *(
            "PWD",
            "OLDPWD",
            "BASE_URL",
            "HOMEPAGE_URL",
            "DISPLAY",
            "EDITOR",
            "PAGER",
            "DB_HOST",
            "DB_NAME",
            "REDIS_PORT",
        ),
        *("UPDATE_URL", "MAILTO", "CACHE_DIR", "PROJECT_URI"),
    ],
)
def test_harmless_variables_can_be_requested(name: str) -> None:
    assert not is_blocked(name)
    assert decide_environment([name], source={name: "value"}).values == {name: "value"}


def test_grant_is_by_exact_name_and_recorded() -> None:
    found = decide_environment(["EDITOR", "PAGE=7"], grants=["GH_TOKEN"], source={"GH_TOKEN": SECRET, "EDITOR": "vi"})
    assert found.values == {"GH_TOKEN": SECRET, "EDITOR": "vi", "PAGE": "7"}
    assert found.record.granted == ("GH_TOKEN",)
    assert found.record.asked == ("EDITOR", "PAGE")
    for pattern in ("GH_*", "*", "", "A B"):
        with pytest.raises(EnvPolicyRefused):
            decide_environment(grants=[pattern], source={"GH_TOKEN": SECRET})


def test_model_key_is_never_passed_on() -> None:
    source = {"HOUSE_MODEL": SECRET}
    for words in ({"grants": ["HOUSE_MODEL"]}, {"asked": ["HOUSE_MODEL"]}, {"asked": [f"OTHER=x{SECRET}"]}):
        with pytest.raises(EnvPolicyRefused):
            decide_environment(**words, model_keys=["HOUSE_MODEL"], source=source)


def test_requested_variable_that_is_not_set_is_refused() -> None:
    for words in ({"asked": ["NOT_HERE"]}, {"grants": ["NOT_HERE"]}):
        with pytest.raises(EnvPolicyRefused):
            decide_environment(**words, source={})


def test_code_host_variables_are_blocked_but_not_secret() -> None:
    source = {
        "GITHUB_REF_NAME": "master",
        "RUNNER_TEMP": "/home/runner",
        "API_TOKEN": "en_US.UTF-8",
        "LANG": "en_US.UTF-8",
    }
    found = decide_environment(["BRANCH=master"], source=source)
    assert found.values == {"BRANCH": "master"}
    assert set(found.record.withheld) == {"GITHUB_REF_NAME", "RUNNER_TEMP", "API_TOKEN", "LANG"}


def test_default_source_is_the_caller_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", SECRET)
    assert SECRET not in decide_environment().values.values()
    assert set(decide_environment().values) <= set(os.environ)


variables = st.dictionaries(
    st.one_of(st.sampled_from(NAMES), st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True)),
    st.text(min_size=6, max_size=24).filter(lambda value: value.strip() == value),
    max_size=12,
)


@given(source=variables, data=st.data())
def test_blocked_values_are_never_passed_on_without_a_grant(source: dict[str, str], data: st.DataObject) -> None:
    names = sorted(source)
    asked = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    grants = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    smuggled = (
        [f"HARMLESS_{n}={source[name]}" for n, name in enumerate(data.draw(st.lists(st.sampled_from(names))))]
        if names
        else []
    )
    try:
        found = decide_environment([*asked, *smuggled], grants=grants, source=source)
    except EnvPolicyRefused:
        return
    secret = {value for name, value in source.items() if is_secret(name) and name not in grants}
    for name, value in found.values.items():
        assert name in grants or not is_blocked(name)
        assert name in grants or not any(each in value for each in secret)
    # The record states how each variable was admitted, but never its value.
    record = found.record
    assert {*record.allowed, *record.asked, *record.granted} == set(found.values)
    reported = msgspec.json.encode(record).decode() + repr(found)
    assert not any(value in reported for value in source.values() if len(value) > 20)


def test_changed_secret_is_withheld_in_the_next_environment() -> None:
    for secret in ("first-secret-value", "other-secret-value"):
        source = {"SERVICE_TOKEN": secret, "TERM": "first-secret-value", "LANG": "other-secret-value"}
        values = decide_environment(source=source).values
        assert secret not in values.values()
        assert len(values) == 1
