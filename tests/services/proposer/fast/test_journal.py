from __future__ import annotations

import os
import random
from array import array

import pytest

from services.proposer.fast.library.journal import HEAD_BYTES, LONGEST, Journal, Record, Tail, files_of, path_of

ME, OTHER = "00000000000000aa", "00000000000000bb"
WORDS = bytes(16)
ONE, TWO = "11" * 16, "22" * 16


def record(text, tokens, at=0, space=ONE, origin=None):
    return Record(space, text, at, array("i", tokens), origin)


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path, ME, WORDS, file_bytes=1000)


def tail(folder):
    return Tail(folder, ME, WORDS)


def only_file(folder):
    (number,) = files_of(folder)[ME]
    return path_of(folder, ME, number)


def test_what_is_appended_is_read_in_order_by_whoever_comes(journal, tmp_path):
    records = [record(1, [5, 6]), record(2, [7], at=3, space=TWO), record(1, [8], at=2, origin=(OTHER, 9))]
    journal.append(records[:1])
    journal.append(records[1:])
    assert tail(tmp_path).read() == records


def test_a_reader_goes_on_where_it_ended(journal, tmp_path):
    reader = tail(tmp_path)
    assert reader.read() == []
    for text in range(40):
        journal.append([record(text, range(text))])
        assert reader.read() == ([record(text, range(text))] if text else [])
    assert len(journal.files) > 1


def test_a_full_file_is_followed_by_another_and_each_can_go(journal, tmp_path):
    for text in range(40):
        journal.append([record(text, range(20))])
    assert sorted(journal.files) == files_of(tmp_path)[ME]
    assert journal.held_bytes() == sum(path_of(tmp_path, ME, number).stat().st_size for number in journal.files)
    first = min(journal.files)
    journal.remove(first)
    assert first not in files_of(tmp_path)[ME]
    assert tail(tmp_path).read()[-1].text == 39


def test_a_long_piece_is_several_records(journal, tmp_path):
    tokens = array("i", range(LONGEST + 5))
    journal.append([record(1, tokens)])
    assert [(one.at, len(one.tokens)) for one in tail(tmp_path).read()] == [(0, LONGEST), (LONGEST, 5)]


def test_files_are_for_the_owner_alone(journal, tmp_path):
    journal.append([record(1, [1])])
    assert only_file(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", range(0, 220, 3))
def test_what_a_death_cut_is_read_up_to_the_last_whole_record(journal, tmp_path, cut):
    records = [record(text, range(10)) for text in range(3)]
    journal.append(records)
    whole = only_file(tmp_path).read_bytes()
    only_file(tmp_path).write_bytes(whole[: len(whole) - cut])
    size = (len(whole) - HEAD_BYTES) // 3
    reader = tail(tmp_path)
    assert reader.read(ended=True) == records[: 3 - -(-cut // size)]
    assert reader.damaged == 0 or cut > 3 * size


def test_half_a_record_of_a_living_process_is_waited_for(journal, tmp_path):
    journal.append([record(1, range(10)), record(2, range(10))])
    whole = only_file(tmp_path).read_bytes()
    reader = tail(tmp_path)
    only_file(tmp_path).write_bytes(whole[:30])
    assert reader.read() == []
    only_file(tmp_path).write_bytes(whole[:-9])
    assert [one.text for one in reader.read()] == [1]
    only_file(tmp_path).write_bytes(whole)
    assert [one.text for one in reader.read()] == [2]


def test_behind_a_damaged_record_reading_goes_on_with_the_next_whole_one(journal, tmp_path, caplog):
    journal.append([record(text, range(10)) for text in range(5)])
    data = bytearray(only_file(tmp_path).read_bytes())
    data[len(data) // 2] ^= 4
    only_file(tmp_path).write_bytes(data)
    reader = tail(tmp_path)
    assert [one.text for one in reader.read()] == [0, 1, 3, 4]
    assert reader.damaged == 1
    assert "is damaged at byte" in caplog.text


def test_no_flipped_bit_gives_a_record_that_was_not_written(journal, tmp_path):
    records = [record(text, range(text, text + 3)) for text in range(3)]
    journal.append(records)
    whole = only_file(tmp_path).read_bytes()
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        only_file(tmp_path).write_bytes(data)
        found = tail(tmp_path).read(ended=True)
        assert len(found) < 3
        assert all(one in records for one in found)


def test_bytes_of_any_kind_are_no_records(tmp_path):
    chance = random.Random(1)
    for size in (0, 1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1, 500):
        path_of(tmp_path, ME, 1).write_bytes(chance.randbytes(size))
        assert tail(tmp_path).read(ended=True) == []


def test_tokens_that_look_like_a_record_are_none(tmp_path):
    """Whoever chooses the tokens doesn't know the salt: behind a damaged record nothing of theirs is believed."""
    journal = Journal(tmp_path, ME, WORDS, file_bytes=100_000)
    journal.append([record(1, [1, 2, 3], space=TWO)])
    own = only_file(tmp_path).read_bytes()[HEAD_BYTES:]
    other = Journal(tmp_path, OTHER, WORDS, file_bytes=100_000)
    other.append([record(7, [0, *array("i", own), 0])])
    path = path_of(tmp_path, OTHER, 1)
    data = bytearray(path.read_bytes())
    data[HEAD_BYTES + 3] ^= 1
    path.write_bytes(data)
    assert own in bytes(data)
    assert Tail(tmp_path, OTHER, WORDS).read(ended=True) == []


def test_a_record_is_right_only_where_it_was_written(journal, tmp_path):
    journal.append([record(1, [1, 2]), record(2, [3, 4])])
    data = only_file(tmp_path).read_bytes()
    head, size = HEAD_BYTES, (len(data) - HEAD_BYTES) // 2
    only_file(tmp_path).write_bytes(data[:head] + data[head + size :] + data[head : head + size])
    assert tail(tmp_path).read(ended=True) == []


def test_another_vocabularys_journal_is_not_read(journal, tmp_path):
    journal.append([record(1, [1])])
    assert Tail(tmp_path, ME, b"\1" * 16).read() == []


def test_behind_an_error_of_the_disk_it_goes_on_in_the_same_file(journal, tmp_path, monkeypatch):
    journal.append([record(1, [1])])
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _fails)
        with pytest.raises(OSError, match="full"):
            journal.append([record(2, [2])])
    journal.append([record(2, [2])])
    assert len(journal.files) == 1
    assert [one.text for one in tail(tmp_path).read()] == [1, 2, 2]


def _fails(_file):
    raise OSError("the disk is full")


def test_a_full_disk_gets_no_second_file_and_every_reader_reads_on(journal, tmp_path, monkeypatch):
    """Whatever part of a piece the disk takes: a reader has read whole records of it, and no more is left there."""
    source, room, write = random.Random(3), 0, os.write
    reader, read, texts = tail(tmp_path), {}, {}

    def limited(file, data):
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        written = write(file, bytes(data)[:room])
        room -= written
        return written

    monkeypatch.setattr("os.write", limited)
    for _ in range(300):
        room = source.choice((0, 1, 30, 100, 200, 10_000))
        for text in range(1, 4):
            texts.setdefault(text, []).extend(source.randrange(9) for _ in range(source.randrange(4)))
        records = [record(text, tokens[read.get(text, 0) :], at=read.get(text, 0)) for text, tokens in texts.items()]
        before = len(files_of(tmp_path).get(ME, []))
        try:
            journal.append(records)
        except OSError:
            assert len(files_of(tmp_path).get(ME, [])) <= before + 1
            written = False
        else:
            written = True
        assert journal.held_bytes() == sum(path_of(tmp_path, ME, each).stat().st_size for each in journal.files)
        assert sorted(journal.files) == files_of(tmp_path).get(ME, [])
        for one in reader.read():
            assert list(one.tokens) == texts[one.text][one.at : one.at + len(one.tokens)]
        if written:
            read = {text: len(tokens) for text, tokens in texts.items()}
    assert reader.damaged == 0
    assert tail(tmp_path).damaged == 0
    whole = {}
    for one in tail(tmp_path).read():
        whole[one.text] = whole.get(one.text, [])[: one.at] + list(one.tokens)
    assert {text: tokens[: read[text]] for text, tokens in whole.items()} == {
        text: tokens[: read[text]] for text, tokens in texts.items()
    }


def test_a_full_disk_that_takes_nothing_leaves_no_file(journal, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("os.write", _full)
        for _ in range(20):
            with pytest.raises(OSError, match="full"):
                journal.append([record(1, [1])])
    assert files_of(tmp_path) == {}
    journal.append([record(1, [1])])
    assert [one.text for one in tail(tmp_path).read()] == [1]


def _full(_file, _data):
    raise OSError("the disk is full")
