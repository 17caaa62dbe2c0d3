from __future__ import annotations

import os
import random
import sqlite3
from array import array

import pytest
from library_world import recent
from segment_problems import read_texts

from services.proposer.store import database as library_database
from services.proposer.store.database import LONGEST, Database, DatabaseDamaged, Outdated, checksum
from services.proposer.store.files import StoredFile
from services.proposer.store.library import Bounds, Library

ONE, TWO = "11" * 16, "22" * 16


@pytest.fixture
def opened(tmp_path):
    found = []
    (tmp_path / "segments").mkdir()

    def opened(first=False):
        found.append(Database(tmp_path / "library.db", tmp_path / "segments", first, 1 << 30))
        return found[-1]

    yield opened
    for each in found:
        each.close()


@pytest.fixture
def database(opened):
    return opened(first=True)


def file(number=1, space=ONE, role="learned", **more):
    told = {"corpus": "", "tokens": 3, "texts": 1, "bytes": 9, "born": 5.0}
    return StoredFile(f"{number:024x}.{role}", space=space, role=role, **told | more)


@pytest.fixture
def segments(tmp_path):
    return tmp_path / "segments"


def there(database, *files):
    """On disk, and in the database."""
    for each in files:
        (database.path.parent / "segments" / each.file).write_bytes(b"x")
    database.change(files)


def add(database, *texts):
    database.add_pieces([(space, text, array("i", tokens)) for space, text, tokens in texts])


def said(pieces):
    return [(piece.space, piece.text, list(piece.tokens)) for piece in pieces]


def test_pieces_are_read_in_order_by_whoever_comes(database, opened):
    texts = [(ONE, 1, [5, 6]), (TWO, 2, [7]), (ONE, 1, [8])]
    add(database, *texts[:1])
    other = opened()
    add(other, *texts[1:])
    for each in (database, other):
        assert said(each.pieces(ONE)) == [texts[0], texts[2]]
        assert said(each.pieces(TWO)) == [texts[1]]
        assert each.stored() == {TWO: (1, 1), ONE: (3, 2)}


def test_a_long_piece_is_several(database):
    add(database, (ONE, 1, range(LONGEST + 5)))
    assert [len(piece.tokens) for piece in database.pieces(ONE)] == [LONGEST, 5]


def test_no_id_is_used_twice(database):
    add(database, (ONE, 1, [5]))
    [before] = database.pieces(ONE)
    database.drop_pieces(ONE)
    add(database, (ONE, 1, [5]))
    [after] = database.pieces(ONE)
    assert after.id > before.id


def test_however_many_pieces_there_are_all_are_read(database, monkeypatch):
    monkeypatch.setattr(library_database, "_PIECES", 3)
    add(database, *((ONE, number, [number]) for number in range(10)))
    assert [piece.text for piece in database.pieces(ONE)] == list(range(10))


def test_pieces_of_a_namespace_are_found_without_reading_others(database):
    plans = []
    database._connection.set_trace_callback(plans.append)
    list(database.pieces(ONE)), database.stored()
    database._connection.set_trace_callback(None)
    plans = [str(database._connection.execute(f"EXPLAIN QUERY PLAN {each}").fetchall()) for each in plans]
    assert "USING INDEX pieces_of_space" in plans[0] and "TEMP" not in plans[0]
    assert "USING COVERING INDEX pieces_of_space" in plans[1]


def test_what_becomes_a_segment_is_no_piece_any_more_and_only_once(database, opened):
    other = opened()
    add(database, (ONE, 1, [5]), (TWO, 2, [6]))
    pieces = list(database.pieces(ONE))
    add(other, (ONE, 1, [7]))
    database.change([file()], sealed=(ONE, pieces))
    with pytest.raises(Outdated):
        other.change([file(2)], sealed=(ONE, pieces))
    assert said(other.pieces(ONE)) == [(ONE, 1, [7])] and said(other.pieces(TWO)) == [(TWO, 2, [6])]
    assert other.look() == {ONE: [file()]}


def test_others_see_what_has_changed_and_nothing_else(database, opened):
    other = opened()
    other.look()
    assert other.look() is None
    there(database, file(1), file(2, TWO, "ready", corpus="notes"))
    database.change([file(3, TWO, "failed", corpus="other", message="no room")])
    assert other.look() == {
        ONE: [file(1)],
        TWO: [file(2, TWO, "ready", corpus="notes"), file(3, TWO, "failed", corpus="other", message="no room")],
    }
    assert other.look() is None


def test_files_go_once_they_are_no_longer_named(database, segments):
    there(database, file(1), file(2))
    with pytest.raises(Outdated):
        database.change([], [file(1), file(3)])
    assert (segments / file(1).file).exists()
    database.change([], [file(1)])
    assert [path.name for path in segments.iterdir()] == [file(2).file]


def test_what_is_not_named_is_swept(database, segments):
    there(database, file(1))
    for name in (file(2).file, ".part"):
        (segments / name).write_bytes(b"x")
    database.sweep()
    assert [path.name for path in segments.iterdir()] == [file(1).file]


def test_a_commit_is_synced(database):
    assert database._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert database._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_who_holds_a_transaction_and_stands_still_is_not_waited_for(database, opened, monkeypatch):
    monkeypatch.setattr(library_database, "_PATIENCE", 0.0)
    other = opened()
    with database.transaction(), pytest.raises(OSError, match="locked"):
        add(other, (ONE, 1, [5]))


# A file that is damaged, or that a stranger has written --------------------------------------------------------


def changed(path, *statements):
    with sqlite3.connect(path) as connection:
        for statement, *values in statements:
            connection.execute(statement, *values)
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON pieces BEGIN DELETE FROM files; END",
        "CREATE VIEW v AS SELECT * FROM pieces",
        "CREATE TABLE more (x)",
        "DROP TABLE files",
        "ALTER TABLE files ADD COLUMN more",
    ],
)
def test_another_schema_is_refused(database, opened, tmp_path, statement):
    database.close()
    changed(tmp_path / "library.db", [statement])
    with pytest.raises(DatabaseDamaged, match="not a library of this format"):
        opened(first=True)


@pytest.mark.parametrize("data", [b"nothing", b"SQLite format 3\0" + bytes(84), bytes(5000)])
def test_what_is_no_database_is_refused(tmp_path, opened, data):
    (tmp_path / "library.db").write_bytes(data)
    with pytest.raises(DatabaseDamaged):
        opened(first=True)


WRONG_FILES = [
    ("file", "../../etc/passwd"), ("file", "1.learned"), ("space", "x"), ("role", "other"), ("corpus", "a/b"),
    ("tokens", -1), ("tokens", "many"), ("bytes", (1 << 62) + 1), ("born", float("inf")), ("born", None),
    ("message", "x" * 201),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value"), WRONG_FILES)
def test_values_that_this_program_does_not_write_are_ignored(database, column, value):
    there(database, file(1), file(2))
    row = list((vars_of(file(2)) | {column: value}).values())
    row.append(checksum(row))
    changed(
        database.path,
        ("DELETE FROM files WHERE file = ?", (file(2).file,)),
        (f"INSERT INTO files VALUES ({', '.join('?' * len(row))})", row),
    )
    assert database.look() == {ONE: [file(1)]}
    assert database.damaged == 1


def vars_of(one):
    return {name: getattr(one, name) for name in one.__struct_fields__}


WRONG_PIECES = [
    (ONE, "a", 1, b""), (ONE, 1, 1, b"123"), (ONE, 1, 1, b"\xff" * 4), (ONE, 1, 1, "text"), (ONE, 1, None, b""),
]  # fmt: skip


@pytest.mark.parametrize("row", WRONG_PIECES)
def test_pieces_that_this_program_does_not_write_are_ignored(database, row):
    add(database, (ONE, 1, [5]))
    insert = "INSERT INTO pieces (space, text, length, tokens, crc) VALUES (?, ?, ?, ?, ?)"
    changed(database.path, (insert, (*row, checksum(row))))
    assert [list(piece.tokens) for piece in database.pieces(ONE)] == [[5], []]
    assert database.damaged == 1


def test_sizes_that_a_stranger_has_written_are_bounded(database):
    for number, length in enumerate([-5, 1 << 60, "many", b"more", None]):
        row = f"{number:032x}", 1, length, b""
        changed(database.path, ("INSERT INTO pieces (space, text, length, tokens, crc) VALUES (?, ?, ?, ?, 0)", row))
    changed(database.path, ["INSERT INTO pieces (space, length) VALUES (NULL, 1), (x'00', 1)"])
    assert list(database.stored().values()) == [(0, 1), (LONGEST, 1), (LONGEST, 1), (LONGEST, 1), (0, 1)]


@pytest.mark.parametrize("seed", range(4))
def test_no_flipped_bit_gives_what_was_not_written(tmp_path, seed):
    """One bit at a time: of all bytes of the header, and some of the rest. Text comes again as it was, or it is told
    that it does not; segments are found again."""
    chance, path = random.Random(seed), None
    library = Library(tmp_path, "words", threads=False)
    library.learn("a", 1, range(100, 200))
    library.seal("a")
    library.work()
    library.learn("a", 1, range(200, 300))
    library.learn("b", 1, range(300, 400))
    library.close()
    [path] = tmp_path.rglob("library.db")
    whole = path.read_bytes()
    for place in [*range(seed, 100, 4), *(chance.randrange(100, len(whole)) for _ in range(60))]:
        data = bytearray(whole)
        data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        library = Library(tmp_path, "words", threads=False)
        found = [list(text) for name in "ab" for text in recent(library, name)]
        library.segments("a")
        library.work()
        segments = [list(text) for segment in library.segments("a") for text in read_texts(segment)]
        told = library.stats().damaged
        assert all(text in ([*range(200, 300)], [*range(300, 400)]) for text in found), place
        assert segments == [[*range(100, 200)]] or told, place
        assert len(found) == 2 or told, place
        library.learn("c", 1, [1])
        library.write()
        assert library.stats().failures == 0, place
        library.close()
        for left in path.parent.glob("library.db*"):
            os.unlink(left)


def test_a_damaged_database_is_set_aside_and_segments_are_found_again(tmp_path, caplog):
    library = Library(tmp_path, "words", threads=False)
    library.learn("a", 1, [1, 2, 3])
    library.seal("a")
    library.add_corpus("a", "notes", 0, [[7]])
    library.work()
    library.learn("a", 1, [4])
    library.close()
    [path] = tmp_path.rglob("library.db")
    path.write_bytes(b"nothing")
    for _ in range(2):
        library = Library(tmp_path, "words", Bounds(), threads=False)
        library.segments("a")
        library.work()
        assert [list(text) for one in library.segments("a") for text in read_texts(one)] == [[1, 2, 3]]
        assert library.corpora("a") == [] and recent(library, "a") == []
        assert library.stats().damaged == (0 if _ else 1)
        library.close()
    assert path.with_name("library.db.damaged").read_bytes() == b"nothing"
    assert "is damaged and is now" in caplog.text and "1 segments of learned text were found again" in caplog.text


def test_what_this_process_has_changed_is_known_without_reading_it_again(database, opened, segments):
    there(database, file(1), file(2, TWO))
    database.look()
    statements = []
    database._connection.set_trace_callback(statements.append)
    (segments / file(3).file).write_bytes(b"x")
    database.change([file(3)], [file(1)])
    assert database.look() == {TWO: [file(2, TWO)], ONE: [file(3)]} and database.look() is None
    assert not any("SELECT * FROM files" in each for each in statements)
    # Another one's change is read, also where an own one follows it.
    opened().change([file(4)])
    database.change([], [file(3)])
    assert database.look() == {TWO: [file(2, TWO)], ONE: [file(4)]} == opened().look()
    assert database.look() is None
