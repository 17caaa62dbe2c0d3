from __future__ import annotations

import fcntl
import os

import pytest

from services.proposer.store import folder as library_folder
from services.proposer.store.folder import FolderBusy, LibraryFolder


@pytest.fixture
def opened(tmp_path):
    found = []

    def opened():
        found.append(LibraryFolder(tmp_path, "words"))
        return found[-1]

    yield opened
    for each in found:
        each.close()


def test_who_comes_first_is_alone_until_it_lets_others_in(opened, monkeypatch):
    monkeypatch.setattr(library_folder, "_PATIENCE", 0.0)
    first = opened()
    assert first.alone
    with pytest.raises(FolderBusy):
        opened()
    first.let_others_in()
    second = opened()
    assert not second.alone
    first.close()
    second.close()
    assert opened().alone


def test_only_one_builds(opened):
    one = opened()
    one.let_others_in()
    other = opened()
    with one.building() as ours:
        assert ours
        with other.building() as theirs:
            assert not theirs
    with other.building() as theirs:
        assert theirs


def test_as_long_as_one_is_open_the_lock_tells(opened):
    one = opened()
    one.let_others_in()
    file = os.open(one.root / "lock", os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    one.close()
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(file)
