"""`[engine]` in settings files, and the flags that override it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proofbox.config.engine import EngineSettings, chosen_engine
from proofbox.config.settings import Settings, load_users, render
from proofbox.core.dirs import config_dir
from proofbox.errors import ProofboxError, UsageError

CLUSTER = EngineSettings(
    name="ray:10.0.0.1:6379", per_node=8, resources={"memory": "4g", "box": 1.0}, unauthenticated=True
)


def test_engine_survives_being_written_and_read() -> None:
    assert msgspec.convert(tomllib.loads(render(Settings(engine=CLUSTER))), Settings).engine == CLUSTER


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {}),
        ({"name": "ray"}, {"name": "ray"}),
        ({"per_node": 2}, {"per_node": 2}),
        ({"resources": ["box=2", "gpus=1"]}, {"resources": {"memory": "4g", "box": "2", "gpus": "1"}}),
    ],
)
def test_flag_overrides_the_setting_of_the_same_name(flags: dict[str, Any], expected: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": None, "per_node": None, "resources": (), **flags}
    assert chosen_engine(CLUSTER, **given) == msgspec.structs.replace(CLUSTER, **expected)


@pytest.mark.parametrize("size", ["512", "512m", 512.0])
def test_memory_without_a_unit_is_in_mb(size: str | float) -> None:
    assert EngineSettings(name="ray", resources={"memory": size}).amount("memory") == 512 << 20


def test_engine_is_local_unless_chosen() -> None:
    assert chosen_engine(None, None, None, ()).is_local
    assert chosen_engine(CLUSTER, "local", None, ()).is_local


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("slurm", None, ()), "engine 'slurm' is unknown"),
        (("ray:", None, ()), "engine 'ray:' is unknown"),
        (("ray:10.0.0.1", None, ()), "is unknown"),
        (("ray:host:port", None, ()), "is unknown"),
        (("ray", 0, ()), "per_node must be at least 1"),
        (("ray", None, ["gpus=some"]), "resource 'gpus' is invalid"),
        (("ray", None, ["gpus=0"]), "resource 'gpus' is invalid"),
        (("ray", None, ["memory=much"]), "memory"),
        (("ray", None, ["=1"]), "resource '' is invalid"),
        ((None, 2, ()), "need --engine ray"),
        (("local", None, ["gpus=1"]), "need --engine ray"),
    ],
)
def test_engine_that_makes_no_sense_is_refused(flags: tuple[str | None, int | None, list[str]], reason: str) -> None:
    with pytest.raises(ProofboxError, match=reason):
        chosen_engine(None, *flags)


@pytest.mark.parametrize(
    "text",
    ['name = "slurm"', "per_node = 0", "resources = { gpus = -1 }", 'resources = { memory = "much" }', 'nodes = "all"'],
)
def test_malformed_engine_in_the_settings_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config_dir().joinpath("config.toml").write_text(f"[engine]\n{text}\n")
    with pytest.raises(UsageError, match=r"config\.toml: "):
        load_users()
