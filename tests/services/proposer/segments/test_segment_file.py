"""A segment's file is whole or refused, whatever happened to it, and several processes read the same one."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from segment_problems import problems, read_texts

from services.proposer.segments import file as segment_file
from services.proposer.segments.segment import Segment, SegmentDamaged, merge

TEXTS = [[random.Random(number).randrange(50) for _ in range(97)] for number in range(4)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Segment.build(TEXTS, tmp_path / "whole.segment", "tokens of a model", "somebody").close()
    return tmp_path / "whole.segment"


def changed(path: Path, content: bytes) -> Path:
    other = path.with_name("changed.segment")
    other.write_bytes(content)
    return other


def test_a_file_tells_whose_it_is(path: Path) -> None:
    segment = Segment.open(path, "tokens of a model", "somebody")
    assert (segment.vocabulary, segment.namespace) == ("tokens of a model", "somebody")
    assert segment.held_bytes() == path.stat().st_size
    with pytest.raises(SegmentDamaged, match="vocabulary"):
        Segment.open(path, "tokens of another", "somebody")
    with pytest.raises(SegmentDamaged, match="namespace"):
        Segment.open(path, "tokens of a model", "somebody else")


def test_a_token_takes_less_than_nine_bytes_and_the_head(tmp_path: Path) -> None:
    segment = Segment.build([range(5000)] * 4, tmp_path / "a")
    assert segment.held_bytes() - 4096 < 8.1 * segment.tokens


def test_any_changed_byte_is_seen(path: Path) -> None:
    content = path.read_bytes()
    # All of what says what it is, and every part of the rest.
    for at in [*range(400), *range(400, len(content), 11), len(content) - 1]:
        torn = bytearray(content)
        torn[at] ^= 1 << at % 8
        with pytest.raises(SegmentDamaged):
            Segment.open(changed(path, bytes(torn)))


def test_any_cut_is_seen(path: Path) -> None:
    content = path.read_bytes()
    for size in [*range(64), *range(64, len(content), 61), 4095, 4096, len(content) - 1]:
        with pytest.raises(SegmentDamaged):
            Segment.open(changed(path, content[:size]))
    with pytest.raises(SegmentDamaged):
        Segment.open(changed(path, content + bytes(64)))


def test_a_hole_where_a_page_should_be_is_seen(path: Path) -> None:
    """What a disk may keep of a file that was written when the power went."""
    content = path.read_bytes()
    for at in range(0, len(content), 512):
        torn = content[:at] + bytes(len(content[at : at + 512])) + content[at + 512 :]
        with pytest.raises(SegmentDamaged):
            Segment.open(changed(path, torn))


def test_what_others_wrote_is_refused(path: Path) -> None:
    chance = random.Random(3)
    for content in (b"", b"{}", chance.randbytes(9000), segment_file.MAGIC + chance.randbytes(9000)):
        with pytest.raises(SegmentDamaged):
            Segment.open(changed(path, content))
    with pytest.raises(FileNotFoundError):
        Segment.open(path.with_name("missing"))


def with_head(content: bytes, version: int = segment_file.VERSION, **fields: object) -> bytes:
    """As a liar would write it: the head's checksum is right."""
    header = json.loads(content[16:4096]) | fields
    body = json.dumps(header).encode().ljust(4080)
    start = struct.pack("<8sI", segment_file.MAGIC, version)
    return start + struct.pack("<I", zlib.crc32(body, zlib.crc32(start))) + body + content[4096:]


def test_counts_are_not_believed_before_the_file_agrees(path: Path) -> None:
    content = path.read_bytes()
    assert problems(Segment.open(changed(path, with_head(content)))) == []
    lies: list[dict[str, object]] = [
        {"tokens": 2**40}, {"tokens": -5}, {"tokens": 387}, {"tokens": 389}, {"tokens": "many"}, {"texts": -1},
        {"texts": 5}, {"texts": 2**31}, {"tokens": 0, "texts": 0}, {"depth": 0}, {"depth": 10**6}, {"checksum": "no"},
        {"checksum": 0}, {"vocabulary": 7}, {"more": 1},
    ]  # fmt: skip
    for lie in lies:
        with pytest.raises(SegmentDamaged):
            Segment.open(changed(path, with_head(content, **lie)))
    with pytest.raises(SegmentDamaged, match="format"):
        Segment.open(changed(path, with_head(content, version=1)))


def with_words(content: bytes, section: int, words: dict[int, int]) -> bytes:
    """As a liar would write them: all checksums are right."""
    # 393 words of text and 388 of positions.
    count = (393, 388)[section]
    changing, begin = bytearray(content), 4096 + section * 4 * 393
    for at, value in words.items():
        struct.pack_into("<i", changing, begin + 4 * (at % count), value)
    return with_head(bytes(changing), checksum=zlib.crc32(changing[4096:]))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        *((0, {at: value}) for at in (0, 200, -1) for value in (-2, 5) if (at, value) != (200, 5)),
        # A separator stands elsewhere instead: there are as many as there should be.
        *((0, {at: 5, 200: -1}) for at in (0, -1)),
        (0, {200: -1}),
        *((1, {at: value}) for at in (0, 200, -1) for value in (-2, -1, 0, 392, 393, 2**31 - 1)),
    ],
)
def test_positions_and_texts_never_lead_out_of_the_file(path: Path, section: int, words: dict[int, int]) -> None:
    """Checksums are no proof: whoever writes a wrong structure can write those, too."""
    with pytest.raises(SegmentDamaged):
        Segment.open(changed(path, with_words(path.read_bytes(), section, words)))


def test_a_wrong_order_is_found_by_who_looks_for_it(path: Path) -> None:
    """Opening doesn't: it leads to wrong guesses, and nowhere else."""
    content = path.read_bytes()
    positions = Segment.open(path).sections()[1]
    swapped = {100: int(positions[300]), 300: int(positions[100])}
    assert any(
        "stands before" in each for each in problems(Segment.open(changed(path, with_words(content, 1, swapped))))
    )
    twice = {100: int(positions[300])}
    assert problems(Segment.open(changed(path, with_words(content, 1, twice))))


# Being written --------------------------------------------------------------------------------------------


def test_a_build_that_fails_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "no space left on device")

    for call in ("posix_fallocate", "replace", "fsync"):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, full)
            with pytest.raises(OSError, match="no space"):
                Segment.build([[1, 2]], path)
        assert path.read_bytes() == content
        assert list(path.parent.iterdir()) == [path]


KILLED_AT = """
import os, sys
from pathlib import Path
from services.proposer.segments.segment import Segment
import services.proposer.segments.file as segment_file

calls = 0
def killed_at(call):
    def count(*args, **more):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            os._exit(9)
        return call(*args, **more)
    return count

segment_file.os = type("os", (), dict(vars(os)))
for name in ("posix_fallocate", "replace", "fsync", "close"):
    setattr(segment_file.os, name, staticmethod(killed_at(getattr(os, name))))
segment_file.SegmentFile.finish = killed_at(segment_file.SegmentFile.finish)
Segment.build([[1, 2, 3]] * 9, Path(sys.argv[1]))
"""


@pytest.mark.parametrize("step", range(1, 8))
def test_a_process_that_dies_while_writing_leaves_the_old_file_or_the_new_one(path: Path, step: int) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED_AT, str(path), str(step)], cwd=Path(__file__).parents[4])
    assert ended.returncode == 9
    segment = Segment.open(path)
    assert problems(segment) == []
    assert [text.tolist() for text in read_texts(segment)] in (TEXTS, [[1, 2, 3]] * 9)
    others = [each for each in path.parent.iterdir() if each != path]
    assert all(each.name.endswith(segment_file.UNFINISHED) for each in others)


# Being read by several ------------------------------------------------------------------------------------

READ = """
import sys
from pathlib import Path
import numpy as np
from services.proposer.segments.segment import Segment
from services.proposer.fast.drafting.records import DRAFT
from services.proposer.segments.loops import guess
segment = Segment.open(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
drafts = np.zeros(2, DRAFT)
guess(segment.address, np.array([2, 3], np.int32), 8, 1.0, 0.0, 0.1, drafts)
print(drafts[0]["tokens"][: drafts[0]["count"]].tolist())
"""


def test_processes_go_on_reading_a_file_that_another_replaces(tmp_path: Path) -> None:
    path = tmp_path / "shared.segment"
    first = Segment.build([[1, 2, 3, 4, 5]], path)
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READ, str(path)], cwd=Path(__file__).parents[4], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        for reader in readers:
            assert reader.stdout is not None and reader.stdout.readline() == "open\n"
        second = Segment.build([[2, 3, 9, 9]], tmp_path / "second.segment")
        merged = merge([first, second], path)
        first.close()
        assert (merged.texts, problems(merged)) == (2, [])
        for reader in readers:
            assert reader.communicate("\n")[0] == "[4, 5]\n"
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
