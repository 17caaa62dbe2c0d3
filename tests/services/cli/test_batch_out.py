"""OUT of a batch: what a start keeps of it, and who may write it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.cli.batch_lines import Refused, answer_line, refused_line
from services.cli.batch_out import PART, Ids, Out, OutError


def answer(name: str, status: int = 200) -> bytes:
    return answer_line(name, status, "req-1", {"text": f"of {name}\n"})


def started(path: Path) -> tuple[int, bytes, Ids]:
    """How many answers are kept, and what OUT has then."""
    ids = Ids()
    out = Out(path, ids)
    kept = out.kept
    out.close()
    return kept, path.read_bytes(), ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_a_new_file_is_made_and_lines_are_there_at_once(path: Path) -> None:
    out = Out(path, Ids())
    out.write(answer("a"))
    assert out.kept == 0 and json.loads(path.read_bytes())["custom_id"] == "a"
    out.write(answer("b"))
    assert [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()] == ["a", "b"]
    out.close()


def test_a_file_torn_at_any_byte_keeps_its_whole_lines(path: Path) -> None:
    first, second = answer("a"), answer("b")
    for length in range(len(second)):
        path.write_bytes(first + second[:length])
        kept, left, ids = started(path)
        assert (kept, left) == (1, first)
        assert ids.meet("a", 1) == 0 and ids.meet("b", 2) is None
    path.write_bytes(first + second[:5] + b"\0" * 500)
    assert started(path)[:2] == (1, first), "and with the zeros of a power failure"


def test_errors_and_what_is_there_twice_are_left_out(path: Path) -> None:
    refused = refused_line(Refused(4, "c", "invalid_url", "url: is none"))
    path.write_bytes(answer("a") + refused + answer("b", 500) + (second := answer("d")) + answer("d"))
    first = path.read_bytes().splitlines(keepends=True)[0]
    path.chmod(0o640)
    kept, left, ids = started(path)
    assert (kept, left) == (2, first + second)
    assert [ids.meet(name, 9) for name in "abcd"] == [0, None, None, 0]
    assert path.stat().st_mode & 0o777 == 0o640 and [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("other", [b"my notes\n", b"my notes", b'{"custom_id": "a"}\n', b"\n"])
def test_another_file_is_refused_and_stays_as_it_is(path: Path, other: bytes) -> None:
    text = answer("a") + other
    path.write_bytes(text)
    with pytest.raises(OutError, match="line 2"):
        Out(path, Ids())
    assert path.read_bytes() == text and not path.with_name(path.name + PART).exists()
    assert path.exists()


def test_a_file_has_one_batch_at_a_time(path: Path) -> None:
    out = Out(path, Ids())
    with pytest.raises(OutError, match="another batch writes"):
        Out(path, Ids())
    out.write(answer("a"))
    out.close()
    assert started(path)[0] == 1


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    path.write_bytes(answer("a"))
    assert started(link)[0] == 1 and link.is_symlink()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(OutError, match="is no file"):
            Out(place, Ids())


def test_ids_tell_new_answered_and_met_ones_apart() -> None:
    ids = Ids()
    assert ids.add_answered("a") and not ids.add_answered("a") and ids.add_answered("z")
    assert [ids.meet("a", 1), ids.meet("b", 2), ids.meet("a", 3), ids.meet("b", 4)] == [0, None, 1, 2]
    assert ids.never_met() == 1
