"""Which paths a session needs, and which secrets of its server it must not see."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from rpcsys.server.config import ServerConfig
from rpcsys.server.supervisor import session_paths


@pytest.fixture
def config():
    return ServerConfig()


def test_sessions_need_python_and_what_the_server_was_given(config, tmp_path):
    library = str(tmp_path / "libdriver.so")
    needed = session_paths.needed(replace(config, load_library=(library,), cache="/var/cache/models"))
    assert {sys.prefix, library, "/var/cache/models"} <= {*needed}


def test_a_key_and_a_credential_with_its_folder_are_secrets(config, tmp_path, monkeypatch):
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    lab = tmp_path / "lab" / "board.credential"
    lab.parent.mkdir()
    secrets = session_paths.secrets(replace(config, standing_key=str(tmp_path / "key"), lab=str(lab)), [])
    assert {str(tmp_path / "key"), str(lab.parent), str(tmp_path / "state")} <= {*secrets}
    assert str(lab) not in secrets


def test_a_folder_with_something_that_sessions_need_is_not_closed(config, tmp_path):
    lab = tmp_path / "board.credential"
    secrets = session_paths.secrets(replace(config, lab=str(lab)), [str(tmp_path / "models" / "cache")])
    assert str(lab) in secrets
    assert str(tmp_path) not in secrets


def test_an_open_server_has_no_secrets(config):
    assert session_paths.secrets(config, []) == []
