from __future__ import annotations

from array import array

from services.proposer.fast.library.journal import Record
from services.proposer.fast.library.texts import PRICE, OtherTexts


def record(at, tokens, text=1, space="aa"):
    return Record(space, text, at, array("i", tokens))


def told(*records, max_tokens=1000, max_spaces=10):
    heard = OtherTexts(max_tokens, max_spaces)
    heard.read(records)
    return heard


def test_what_comes_behind_a_hole_is_no_part_of_the_text():
    heard = told(record(0, [1, 2]), record(3, [4]), record(2, [3, 4]))
    assert heard.spaces["aa"][1].tokens == array("i", [1, 2, 3, 4])
    assert told(record(3, [4])).spaces["aa"][1].tokens == array("i")


def test_what_was_written_twice_is_there_once():
    heard = told(record(0, [1, 2]), record(2, [3]), record(0, [1, 2, 3, 4]), record(1, [2]))
    assert heard.spaces["aa"][1].tokens == array("i", [1, 2, 3, 4])


def test_namespaces_told_of_long_ago_go_first():
    some = [record(0, [1], space=space) for space in ("aa", "bb", "cc")]
    assert list(told(*some, max_spaces=2).spaces) == ["bb", "cc"]
    assert list(told(*some, max_tokens=2 * (PRICE + 1)).spaces) == ["bb", "cc"]
