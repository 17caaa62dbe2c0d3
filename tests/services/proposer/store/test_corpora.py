from __future__ import annotations

import fcntl

import pytest
from library_world import Clock, killed
from segment_problems import read_texts

from services.api.messages import CorpusCard
from services.proposer.segments.segment import Segment
from services.proposer.store import corpora as library_corpora
from services.proposer.store.library import Bounds, Library
from services.proposer.store.uploads import CorpusRefused


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_library(tmp_path, clock):
    opened = []

    def make(bounds=None):
        opened.append(Library(tmp_path, "words", bounds, now=clock.now, clock=clock.now, threads=False))
        return opened[-1]

    yield make
    for library in opened:
        library.close()


def states(library, namespace="a"):
    return {card.name: card.state for card in library.corpora(namespace)}


def texts(library, name, namespace="a"):
    library.corpus_segments(namespace, name)
    library.work()
    return [list(text) for segment in library.corpus_segments(namespace, name) for text in read_texts(segment)]


def test_a_corpus_comes_in_parts_and_is_built(open_library):
    library = open_library()
    library.add_corpus("a", "notes", 0, [[1, 2], [3]], last=False)
    assert library.corpora("a") == [CorpusCard(name="notes", state="receiving", texts=2, tokens=3)]
    library.work()
    library.add_corpus("a", "notes", 1, [[4, 5]])
    assert library.corpora("a") == [CorpusCard(name="notes", state="building", texts=3, tokens=5)]
    library.work()
    assert library.corpora("a") == [CorpusCard(name="notes", state="ready", texts=3, tokens=5, progress=1.0)]
    assert texts(library, "notes") == [[1, 2], [3], [4, 5]]
    assert library.corpora("b") == [] and library.corpus_segments("b", "notes") == []


def test_a_corpus_without_a_token_is_ready_too(open_library):
    library = open_library()
    library.add_corpus("a", "notes", 0, [[]])
    library.work()
    assert library.corpora("a") == [CorpusCard(name="notes", state="ready", progress=1.0)]
    assert texts(library, "notes") == []


def test_a_corpus_is_no_segment_of_what_was_learned(open_library):
    library = open_library()
    library.add_corpus("a", "notes", 0, [[1]])
    library.work()
    assert texts(library, "notes") == [[1]]
    assert library.segments("a") == []
    assert library.stats().tokens == 0 and library.stats().corpora == 1


def test_a_large_corpus_is_sorted_in_pieces_and_tells_how_far_it_is(open_library, monkeypatch):
    monkeypatch.setattr(library_corpora, "PORTION", 100)
    library = open_library()
    library.add_corpus("a", "notes", 0, [range(250), range(40), range(80)])
    seen = []
    build = Segment.build

    def looked_at(*args):
        seen.append(library.corpora("a")[0])
        return build(*args)

    monkeypatch.setattr(Segment, "build", looked_at)
    library.work()
    assert [card.state for card in seen] == ["building"] * len(seen)
    assert [card.progress for card in seen] == sorted({card.progress for card in seen}) and 0 < seen[-1].progress < 1
    assert sorted(token for text in texts(library, "notes") for token in text) == sorted(
        [*range(250), *range(40), *range(80)]
    )


def test_the_old_one_is_there_until_the_new_one_is_ready(open_library):
    library = open_library()
    library.add_corpus("a", "notes", 0, [[1]])
    assert texts(library, "notes") == []
    assert texts(library, "notes") == [[1]]
    library.add_corpus("a", "notes", 0, [[2]], last=False)
    library.work()
    assert texts(library, "notes") == [[1]]
    before = library.version("a")
    library.add_corpus("a", "notes", 1, [[3]])
    library.work()
    assert library.version("a") != before
    assert texts(library, "notes") == [[2], [3]]


def test_what_was_removed_is_gone_also_on_its_way(open_library, tmp_path):
    library = open_library()
    for name in ("ready", "building", "receiving"):
        library.add_corpus("a", name, 0, [[1]], last=name != "receiving")
        if name == "ready":
            library.work()
    for name in ("ready", "building", "receiving", "unknown"):
        library.remove_corpus("a", name)
    assert states(library) == {}
    library.work()
    assert states(library) == {}
    assert not list(tmp_path.rglob("segments/*"))


def test_one_that_was_removed_and_sent_again_is_the_new_one(open_library):
    library = open_library()
    library.add_corpus("a", "notes", 0, [[1]])
    library.remove_corpus("a", "notes")
    library.add_corpus("a", "notes", 0, [[2]])
    assert texts(library, "notes") == []
    assert texts(library, "notes") == [[2]]


def test_it_outlives_a_restart_and_one_that_was_complete_is_built_by_the_next(open_library, monkeypatch):
    library = open_library()
    library.add_corpus("a", "ready", 0, [[1]])
    library.work()
    library.add_corpus("a", "complete", 0, [[2]])
    library.add_corpus("a", "half", 0, [[3]], last=False)
    with monkeypatch.context() as patch:
        patch.setattr(library._builder._corpora, "build", lambda: None)
        library.work()
    killed(library)
    library = open_library()
    assert states(library) == {"ready": "ready", "complete": "building"}
    library.work()
    assert texts(library, "complete") == [[2]] and texts(library, "ready") == [[1]]


def test_parts_come_in_order_and_the_first_begins_anew(open_library):
    library = open_library()
    with pytest.raises(CorpusRefused, match="part 1 of corpus notes came, where none were there"):
        library.add_corpus("a", "notes", 1, [[1]])
    library.add_corpus("a", "notes", 0, [[1]], last=False)
    with pytest.raises(CorpusRefused, match="part 2 of corpus notes came, where 1 were there"):
        library.add_corpus("a", "notes", 2, [[1]])
    library.add_corpus("a", "notes", 0, [[5]])
    assert texts(library, "notes") == []
    assert texts(library, "notes") == [[5]]


@pytest.mark.parametrize("name", ["", "a" * 65, "a/b", "ä", "a b", "a\n", "..\0"])
def test_names_are_plain(open_library, name):
    with pytest.raises(CorpusRefused, match="has a name"):
        open_library().add_corpus("a", name, 0, [[1]])


@pytest.mark.parametrize("wrong", [[-1], [1 << 31], ["a"], [1.5], None])
def test_texts_are_token_ids(open_library, wrong):
    library = open_library()
    with pytest.raises(CorpusRefused, match="token ids"):
        library.add_corpus("a", "notes", 0, [[1], wrong])
    assert states(library) == {}


def test_corpora_are_bounded(open_library):
    library = open_library(Bounds(max_corpora=2, corpus_tokens=10))
    library.add_corpus("a", "one", 0, [range(6)])
    library.work()
    library.add_corpus("a", "two", 0, [range(6)], last=False)
    with pytest.raises(CorpusRefused, match="2 corpora already"):
        library.add_corpus("a", "three", 0, [[1]])
    with pytest.raises(CorpusRefused, match="at most 10 tokens"):
        library.add_corpus("a", "two", 1, [range(5)])
    assert states(library) == {"one": "ready"}


def test_all_uploads_together_are_bounded(open_library):
    library = open_library(Bounds(corpus_tokens=10))
    for namespace in ("a", "b"):
        library.add_corpus(namespace, "notes", 0, [range(9)], last=False)
    with pytest.raises(CorpusRefused, match="being uploaded"):
        library.add_corpus("c", "notes", 0, [range(9)], last=False)


def test_corpora_have_at_most_half_of_the_bytes(open_library):
    library = open_library(Bounds(max_bytes=50_000))
    library.add_corpus("a", "notes", 0, [range(3000)])
    library.work()
    (card,) = library.corpora("a")
    assert card.state == "failed" and "no room" in card.message
    library.remove_corpus("a", "notes")
    library.work()
    assert library.corpora("a") == []


def test_one_that_was_damaged_and_sent_again_is_ready_and_nothing_else(open_library, tmp_path):
    library = open_library()
    library.add_corpus("a", "notes", 0, [[1, 2, 3]])
    library.work()
    library.add_corpus("a", "notes", 0, [[4]])
    [path] = tmp_path.rglob("*.ready")
    library.close()
    path.write_bytes(b"")
    library = open_library()
    library.corpus_segments("a", "notes")
    library.work()
    assert states(library) == {"notes": "failed"}
    library.add_corpus("a", "notes", 0, [[4]])
    library.work()
    assert states(library) == {"notes": "ready"} and texts(library, "notes") == [[4]]


def test_an_upload_that_does_not_go_on_is_dropped(open_library, clock):
    library = open_library(Bounds(upload_seconds=100))
    library.add_corpus("a", "notes", 0, [[1]], last=False)
    clock.time += 99
    library.add_corpus("a", "notes", 1, [[1]], last=False)
    clock.time += 99
    library.work()
    assert states(library) == {"notes": "receiving"}
    clock.time += 2
    library.work()
    assert states(library) == {}


def test_while_another_process_builds_nothing_is_built_here(open_library, tmp_path):
    library = open_library()
    library.add_corpus("a", "notes", 0, [[1]])
    [database] = tmp_path.rglob("library.db")
    with (database.parent / "building").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        library.work()
        assert states(library) == {"notes": "building"}
    library.work()
    assert states(library) == {"notes": "ready"}


def test_a_whole_upload_waits_for_its_turn_however_long_that_takes(open_library, clock):
    library = open_library(Bounds(upload_seconds=100))
    library.add_corpus("a", "notes", 0, [[1]])
    clock.time += 101
    library.work()
    assert states(library) == {"notes": "ready"}


def test_one_whose_file_was_damaged_has_failed_and_can_be_sent_again(open_library, tmp_path):
    library = open_library()
    library.add_corpus("a", "notes", 0, [[1, 2, 3]])
    library.work()
    library.close()
    (path,) = tmp_path.rglob("*.ready")
    path.write_bytes(path.read_bytes()[:-1])
    library = open_library()
    assert texts(library, "notes") == []
    (card,) = library.corpora("a")
    assert card.state == "failed" and "damaged" in card.message
    assert library.stats().damaged == 1
    library.add_corpus("a", "notes", 0, [[4]])
    library.work()
    assert texts(library, "notes") == [[4]]


def test_texts_that_were_damaged_before_they_were_built_are_not_believed(open_library, tmp_path, monkeypatch):
    library = open_library()
    library.add_corpus("a", "notes", 0, [[1, 2, 3]])
    with monkeypatch.context() as patch:
        patch.setattr(library._builder._corpora, "build", lambda: None)
        library.work()
    (path,) = tmp_path.rglob("*.source")
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    library.work()
    (card,) = library.corpora("a")
    assert card.state == "failed" and "damaged" in card.message
    assert not list(tmp_path.rglob("*.source"))
