"""The user's directories: XDG locations, private, and refused if other users can write to them."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from proofbox.core.dirs import cache_dir, config_dir, state_dir
from proofbox.errors import UsageError

Where = Callable[[Mapping[str, str] | None], Path]
ALL = [
    pytest.param(state_dir, "XDG_STATE_HOME", ".local/state", id="state"),
    pytest.param(cache_dir, "XDG_CACHE_HOME", ".cache", id="cache"),
    pytest.param(config_dir, "XDG_CONFIG_HOME", ".config", id="config"),
]


@pytest.mark.parametrize(("where", "variable", "default"), ALL)
def test_location_follows_xdg(tmp_path: Path, where: Where, variable: str, default: str) -> None:
    home = {"HOME": str(tmp_path / "home")}
    with pytest.raises(UsageError, match="no home directory"):  # and it is not made
        where(home)
    assert not (tmp_path / "home").exists()
    (tmp_path / "home").mkdir()
    assert where(home) == tmp_path / "home" / default / "proofbox"
    assert where({**home, variable: str(tmp_path / "x")}) == tmp_path / "x" / "proofbox"
    assert where({**home, variable: "relative"}) == where(home)
    assert where({**home, variable: ""}) == where(home)


@pytest.mark.parametrize(("where", "variable", "default"), ALL)
def test_the_directory_is_private_and_may_exist(
    tmp_path: Path, where: Where, variable: str, default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "base"))
    made = where(None)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    (made / "kept").write_text("x")
    assert where(None) == made
    assert (made / "kept").read_text() == "x"


def test_without_home_the_password_database_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_dir=str(tmp_path)))
    assert state_dir({}) == tmp_path / ".local/state/proofbox"

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UsageError, match="no home") as caught:
        state_dir({})
    assert caught.value.fix_hints == ("set HOME",)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_writable_by_others_is_refused_with_a_hint(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "proofbox"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(UsageError, match="writable by other users") as caught:
        state_dir({"XDG_STATE_HOME": str(tmp_path)})
    assert "chmod go-w" in caught.value.fix_hints[0]
    assert caught.value.details["path"] == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    path.chmod(0o755)
    assert state_dir({"XDG_STATE_HOME": str(tmp_path)}) == path


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "proofbox").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="symbolic link"):
        state_dir({"XDG_STATE_HOME": str(tmp_path)})


def test_a_link_above_is_the_users_choice(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "big")
    assert cache_dir({"XDG_CACHE_HOME": str(tmp_path / "cache")}).is_dir()
    assert (tmp_path / "big" / "proofbox").is_dir()


def test_someone_elses_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    (tmp_path / "proofbox").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(UsageError, match=f"belongs to uid {uid}"):
        state_dir({"XDG_STATE_HOME": str(tmp_path)})


def test_file_at_the_directory_path_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "proofbox").write_text("")
    with pytest.raises(UsageError, match="can't be created") as caught:
        state_dir({"XDG_STATE_HOME": str(tmp_path)})
    assert "XDG_STATE_HOME" in caught.value.fix_hints[0]
