"""The paths that sessions need, and those of secrets."""

import dataclasses
import sys

from rpcsys.server.config import ServerConfig
from rpcsys.server.supervisor import session_paths


def test_sessions_need_this_package_and_what_flags_name():
    config = dataclasses.replace(ServerConfig(), cache="/var/cache/files", load_library=("/opt/a.so",))
    needed = session_paths.needed(config)
    assert {"/var/cache/files", "/opt/a.so", sys.prefix} <= set(needed)


def test_the_folder_of_a_credential_is_secret_unless_sessions_need_something_in_it(tmp_path, monkeypatch):
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    config = dataclasses.replace(ServerConfig(), lab=str(tmp_path / "lab" / "board.cred"))
    assert str(tmp_path / "lab") in session_paths.secrets(config, [])
    kept = session_paths.secrets(config, [str(tmp_path / "lab" / "cache")])
    assert config.lab in kept
    assert str(tmp_path / "lab") not in kept


def test_a_standing_key_is_secret():
    assert session_paths.secrets(dataclasses.replace(ServerConfig(), standing_key="/x/key"), []) == ["/x/key"]
    assert session_paths.secrets(ServerConfig(), []) == []
