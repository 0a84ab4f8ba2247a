"""The folder of deployed modules: after any failure it has the old or the new version."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path

import pytest

from rpcsys.errors import ConfigError, RemoteFileError
from rpcsys.server.models.store import Store, is_name


@pytest.fixture
def store(tmp_path):
    store = Store(str(tmp_path / "deploy"))
    lock = store.open()
    yield store
    os.close(lock)


def put(store: Store, name: str, text: str, **beside: str):
    """Stage a version of a file with ``text``, and files with the texts ``beside`` it."""
    incoming = Path(store.root, "incoming")
    for file, content in {"upload": text, **beside}.items():
        (incoming / file).write_text(content)
    with store.replacing(name):
        return store.stage(name, str(incoming / "upload"), "head.so", sha256(text), beside)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("name", ["head", "head-2", "Head.v2", "0", "a" * 100])
def test_valid_names_are_accepted(name):
    assert is_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "-a", ".a", "a" * 101, "a b", "a\n", "incoming", "lock", "ä", None, 3]
)
def test_invalid_names_are_refused(name):
    assert not is_name(name)


def test_a_version_is_current_after_the_switch(store):
    version = put(store, "head", "one")
    assert store.current() == []
    store.switch(version)
    assert store.current() == [version]
    assert Path(store.path(version)).read_text() == "one"
    assert version.version == "0001-" + sha256("one")[:12]
    second = put(store, "head", "two")
    assert second.version.startswith("0002-")
    assert store.current() == [version]
    store.switch(second)
    assert store.current() == [second]
    store.withdraw("head")
    assert store.current() == []
    with pytest.raises(FileNotFoundError):
        store.withdraw("head")


def test_files_that_a_model_names_lie_beside_it(store):
    incoming = Path(store.root, "incoming", "upload")
    (incoming / "in").mkdir(parents=True)
    for name in ("m.onnx", "weights", "in/more"):
        (incoming / name).write_text(name)
    with store.replacing("head"):
        version = store.stage("head", str(incoming / "m.onnx"), "m.onnx", "ab" * 32, ["weights", "in/more"])
    folder = Path(store.path(version)).parent
    assert {name: (folder / name).read_text() for name in ("m.onnx", "weights", "in/more")} == {
        name: name for name in ("m.onnx", "weights", "in/more")
    }
    assert not list(incoming.glob("*.onnx")) + list(incoming.glob("in/*"))


def test_pruning_removes_all_but_the_current_version(store):
    first, second = put(store, "head", "one"), put(store, "head", "two")
    store.switch(first)
    with open(os.path.join(store.root, "head", "current.new"), "w") as file:
        file.write("half a li")
    store.prune("head")
    assert sorted(os.listdir(os.path.join(store.root, "head"))) == [first.version, "current", "lock"]
    assert second.version != first.version


def test_the_replaced_version_is_kept_until_the_next(store):
    versions = [put(store, "head", text) for text in ("one", "two", "three")]
    store.switch(versions[0])
    assert store.earlier("head") is None
    store.switch(versions[1])
    store.prune("head")
    assert store.earlier("head") == versions[0]
    assert Path(store.path(versions[0])).read_text() == "one"
    store.switch(versions[0])
    assert (store.find("head"), store.earlier("head")) == (versions[0], versions[1])
    store.switch(fourth := put(store, "head", "four"))
    store.prune("head")
    kept = {versions[0].version, fourth.version, "current", "lock"}
    assert set(os.listdir(os.path.join(store.root, "head"))) == kept


def test_the_same_bytes_again_keep_the_version_before(store):
    first, second, again = (put(store, "head", text, weights="w") for text in ("one", "two", "two"))
    for version in (first, second, again):
        store.switch(version)
    assert (store.find("head"), store.earlier("head")) == (again, first)
    store.prune("head")
    assert set(os.listdir(os.path.join(store.root, "head"))) == {first.version, again.version, "current", "lock"}


def test_the_same_bytes_again_as_the_first_version_have_no_version_before(store):
    for _ in range(2):
        store.switch(put(store, "head", "one"))
    assert store.earlier("head") is None


def test_the_same_model_with_other_weights_is_another_version(store):
    first, second = put(store, "head", "one", weights="v"), put(store, "head", "one", weights="w")
    store.switch(first)
    store.switch(second)
    assert (store.find("head"), store.earlier("head")) == (second, first)


def test_a_withdrawn_module_leaves_no_files(store):
    store.switch(put(store, "head", "one"))
    store.switch(put(store, "neck", "two"))
    with store.replacing("head"):
        store.withdraw("head")
        store.tidy("head")
        store.switch(put(store, "head", "three"))  # another client's, at the same time
    store.tidy("neck")
    (head, neck) = store.current()
    assert (head.version[:5], Path(store.path(head)).read_text(), neck.name) == ("0001-", "three", "neck")
    assert sorted(os.listdir(store.root)) == ["head", "incoming", "lock", "neck"]
    with store.replacing("head"):
        store.withdraw("head")
        store.tidy("head")
    assert sorted(os.listdir(store.root)) == ["incoming", "lock", "neck"]
    assert os.listdir(os.path.join(store.root, "incoming")) == []


def test_a_folder_that_is_moved_away_meanwhile_is_not_locked(store, monkeypatch):
    store.switch(put(store, "head", "one"))
    flock = fcntl.flock

    def late(lock, how):
        monkeypatch.undo()
        store.withdraw("head")
        store.tidy("head")
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(RemoteFileError, match="is being replaced by another client"), store.replacing("head"):
        pass


@pytest.mark.parametrize("earlier", [None, 3, [], {}, {"version": "../x", "file": "head.so", "sha256": ""}])
def test_an_invalid_earlier_version_is_none(store, earlier):
    version = put(store, "head", "one")
    store.switch(version)
    path = Path(store.root, "head", "current")
    path.write_text(json.dumps({**json.loads(path.read_text()), "earlier": earlier}))
    assert (store.find("head"), store.earlier("head")) == (version, None)


def test_opening_removes_what_a_killed_server_left(tmp_path):
    store = Store(str(tmp_path / "deploy"))
    os.close(store.open())
    served = put(store, "head", "one")
    store.switch(served)
    staged = put(store, "head", "two")
    with open(os.path.join(store.root, "incoming", "half"), "w") as file:
        file.write("half an upl")
    os.close(store.open())
    assert os.listdir(os.path.join(store.root, "incoming")) == []
    assert not os.path.exists(store.path(staged))
    assert store.current() == [served]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version": "0001-abababababab"}', '{"version": "../x", "file": "head.so", "sha256": ""}',
     '{"version": "0009-abababababab", "file": "head.so", "sha256": ""}'],
)  # fmt: skip
def test_an_invalid_current_file_serves_nothing(store, text):
    store.switch(put(store, "head", "one"))
    with open(os.path.join(store.root, "head", "current"), "w") as file:
        file.write(text)
    assert store.current() == []


def test_a_file_name_stays_in_its_version(store):
    version = put(store, "head", "one")._replace(file="../../../etc/passwd")
    assert store.path(version).startswith(os.path.join(store.root, "head", version.version))


def test_a_second_server_for_a_folder_is_refused(store):
    with pytest.raises(ConfigError, match="another server serves what is deployed there"):
        Store(store.root).open()


def test_a_second_replacement_of_a_module_is_refused(store):
    with store.replacing("head"):
        with pytest.raises(RemoteFileError, match="is being replaced by another client"), store.replacing("head"):
            pass
        with store.replacing("neck"):
            pass


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--deploy"):
        Store(str(tmp_path / "file")).open()
