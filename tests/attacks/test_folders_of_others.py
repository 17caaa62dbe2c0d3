"""Another user of the machine puts links and folders where the store is made. Nothing is written, locked or removed
behind them, and a store that others can change isn't used."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from services.proposer.store.folder import LibraryFolder, private_folder

EVERYTHING = 1 << 60  # bytes: more than /dev/shm has, so that the folder is made in the temporary one


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(place))
    return place


def of_others(path: Path) -> None:
    """Owned by another user where the test may give it away, and in any case writable by all."""
    path.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)


def private_store() -> Path:
    folder, lock = private_folder(EVERYTHING)
    os.close(lock)
    return folder


def test_a_link_in_place_of_a_store_in_memory_is_not_followed(place: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (place / "specmesh-library-0").symlink_to(victim)
    made = private_store()
    assert made.is_dir() and list(victim.iterdir()) == []


def test_a_link_in_place_of_its_lock_is_not_followed(place: Path, tmp_path: Path) -> None:
    left = place / "specmesh-library-0"
    left.mkdir(mode=0o700)
    (left / "lives").symlink_to(tmp_path / "made through the link")
    private_store()
    assert not (tmp_path / "made through the link").exists()


def test_a_store_in_memory_of_another_user_is_left_alone(place: Path) -> None:
    left = place / "specmesh-library-0"
    left.mkdir()
    (left / "kept").write_text("theirs")
    of_others(left)
    private_store()
    assert (left / "kept").read_text() == "theirs" and not (left / "lives").exists()


def test_what_this_user_left_is_still_removed(place: Path) -> None:
    left = private_store()
    assert private_store() != left
    assert not left.exists()


def test_a_store_that_others_can_change_is_not_used(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    of_others(store)
    with pytest.raises(PermissionError, match="store_dir"):
        LibraryFolder(store, "words")
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("which", ["the store", "its folder of the vocabulary", "its segments"])
def test_a_link_of_another_user_in_the_store_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    LibraryFolder(tmp_path / "store", "words").close()
    (root,) = (tmp_path / "store").iterdir()
    place = {"the store": tmp_path / "store", "its folder of the vocabulary": root, "its segments": root / "segments"}
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    place[which].rename(tmp_path / "moved")
    place[which].symlink_to(victim)
    if os.geteuid() == 0:
        os.chown(place[which], 65534, 65534, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError):
        LibraryFolder(tmp_path / "store", "words")
    assert list(victim.iterdir()) == []


def test_a_store_behind_a_link_of_this_user_is_used(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir(mode=0o700)
    (tmp_path / "store").symlink_to(tmp_path / "large disk")
    LibraryFolder(tmp_path / "store", "words").close()
    assert len(list((tmp_path / "large disk").iterdir())) == 1
