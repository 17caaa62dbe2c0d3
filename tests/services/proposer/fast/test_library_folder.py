from __future__ import annotations

import pytest

from services.proposer.fast.library import folder as library_folder
from services.proposer.fast.library.folder import Busy, LibraryFolder
from services.proposer.fast.library.manifest import Manifest, ManifestDamaged, SegmentEntry, decode, encode

SPACE = "ab" * 16


@pytest.fixture
def folder(tmp_path):
    opened = LibraryFolder(tmp_path, "words")
    yield opened
    opened.close()


@pytest.fixture
def other(tmp_path):
    opened = LibraryFolder(tmp_path, "words")
    yield opened
    opened.close()


def bring(folder, *names):
    """A namespace gets files."""
    for name in names:
        (folder.building / name).write_bytes(b"x")

    def change(manifest):
        manifest.segments += [SegmentEntry(name, 1, 1, 1, 0.0) for name in names]

    return folder.commit(SPACE, change, names)


def drop(folder, name):
    def change(manifest):
        manifest.segments = [entry for entry in manifest.segments if entry.file != name]

    return folder.commit(SPACE, change)


def test_files_come_and_go_with_the_manifest(folder, other):
    first, second = folder.new_name("segment"), folder.new_name("segment")
    bring(folder, first, second)
    assert other.read(SPACE).files() == {first, second}
    assert folder.path(SPACE, first).exists() and not list(folder.building.iterdir())
    stamps = other.stamps()
    drop(other, first)
    assert folder.stamps() != stamps
    assert not folder.path(SPACE, first).exists() and folder.path(SPACE, second).exists()


def test_what_no_manifest_names_is_swept_but_not_what_a_living_process_builds(folder, other):
    name = folder.new_name("segment")
    bring(folder, name)
    left = folder.path(SPACE, folder.new_name("segment"))
    left.write_bytes(b"")
    empty = folder.path("cd" * 16, "x").parent
    empty.mkdir()
    living, gone = other.building / other.new_name("segment"), other.building / ("0" * 16 + "-00000001.segment")
    part = other.building / f".{other.new_name('segment')}.part"
    for path in (living, gone, part):
        path.write_bytes(b"")
    folder.sweep()
    assert folder.path(SPACE, name).exists() and living.exists() and part.exists()
    assert not left.exists() and not gone.exists() and not empty.exists()


def test_who_lives_is_not_taken_over_and_who_is_gone_is_once(folder, other, tmp_path):
    third = LibraryFolder(tmp_path, "words")
    assert not folder.take_over(third.instance)
    third.close()
    assert folder.take_over(third.instance)
    assert not other.take_over(third.instance)
    folder.forget(third.instance)
    assert third.instance not in other.others()
    assert other.others() == {folder.instance}


def test_only_one_compacts(folder, other):
    with folder.compacting() as ours:
        assert ours
        with other.compacting() as theirs:
            assert not theirs
    with other.compacting() as theirs:
        assert theirs


def test_who_holds_the_lock_and_stands_still_is_not_waited_for(folder, other, monkeypatch):
    monkeypatch.setattr(library_folder, "_PATIENCE", 0.0)
    with folder._locked(), pytest.raises(Busy):
        bring(other, other.new_name("segment"))


def test_a_manifest_outlives_any_flipped_bit():
    manifest = Manifest([SegmentEntry("0" * 16 + "-00000001.segment", 1, 2, 3, 4.0)], covered={"0" * 16: 5})
    data = encode(manifest)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        assert decode(bytes(flipped)) == manifest


@pytest.mark.parametrize("data", [b"", b"\n\n", b"{}", b"0" * 32 + b" {}\n"])
def test_what_is_no_manifest_is_damaged(data):
    with pytest.raises(ManifestDamaged):
        decode(data)


@pytest.mark.parametrize("file", ["../../x", "/etc/passwd", "manifest", "0-1.segment", ""])
def test_a_manifest_names_our_files_only(file):
    with pytest.raises(ManifestDamaged):
        decode(encode(Manifest([SegmentEntry(file, 1, 1, 1, 0.0)])))


def test_a_damaged_manifest_is_counted_and_the_namespace_begins_anew(folder, caplog):
    name = folder.new_name("segment")
    bring(folder, name)
    folder.path(SPACE, "manifest").write_bytes(b"nothing")
    assert folder.read(SPACE) == Manifest()
    assert folder.damaged == 1 and "its segments are lost" in caplog.text
    bring(folder, folder.new_name("segment"))
    folder.sweep()
    assert not folder.path(SPACE, name).exists()


def test_processes_that_have_no_journal_any_more_are_forgotten(folder):
    def change(manifest):
        manifest.covered = {folder.instance: 3, "0" * 16: 4}

    assert folder.commit(SPACE, change).covered == {folder.instance: 3}
