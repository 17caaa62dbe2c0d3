from __future__ import annotations

import os
import stat
import weakref
from array import array

import pytest
from library_world import Clock, recent
from segment_problems import problems, read_texts

from services.proposer.segments.segment import Segment
from services.proposer.store.library import Bounds, Library

DAY = 24 * 3600.0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_library(tmp_path, clock):
    opened = []

    def make(bounds=None, folder=tmp_path):
        opened.append(Library(folder, "words", bounds, now=clock.now, clock=clock.now, threads=False))
        return opened[-1]

    yield make
    for library in opened:
        library.close()


def teach(library, namespace, *texts):
    for text_id, tokens in enumerate(texts):
        library.learn(namespace, text_id, tokens)
        library.end(namespace, text_id)


def sealed(library, namespace, *texts):
    teach(library, namespace, *texts)
    library.seal(namespace)
    library.work()


def segments(library, namespace):
    library.segments(namespace)
    library.work()
    return library.segments(namespace)


def said(library, namespace):
    return [list(text) for segment in segments(library, namespace) for text in read_texts(segment)]


def test_what_was_learned_is_recent_until_it_is_sealed(open_library):
    library = open_library()
    library.learn("a", 1, [1, 2])
    library.learn("a", 2, [9])
    library.learn("a", 1, [3])
    assert recent(library, "a") == [array("i", [1, 2, 3]), array("i", [9])]
    assert recent(library, "b") == []
    library.seal("a")
    library.work()
    assert recent(library, "a") == []
    assert said(library, "a") == [[1, 2, 3], [9]]


def test_a_text_that_goes_on_is_cut_where_it_was_sealed(open_library):
    library = open_library()
    library.learn("a", 1, [1, 2])
    library.seal("a")
    library.work()
    library.learn("a", 1, [3])
    library.work()
    assert said(library, "a") == [[1, 2]]
    assert recent(library, "a") == [array("i", [3])]


def test_a_text_that_begins_after_a_seal_was_asked_for_is_not_in_it(open_library):
    """The thread comes late: a namespace that begins isn't sealed with its first words."""
    library = open_library()
    teach(library, "old", [1])
    for namespace in ("old", "new"):
        library.seal(namespace)
        library.learn(namespace, 7, [2])
    library.work()
    assert said(library, "old") == [[1]] and recent(library, "old") == [array("i", [2])]
    assert said(library, "new") == [] and recent(library, "new") == [array("i", [2])]
    library.seal("new")
    library.work()
    assert said(library, "new") == [[2]]


def test_namespaces_beyond_the_bound_go_in_one_transaction(open_library, clock):
    library = open_library()
    for namespace in "abcde":
        clock.time += DAY
        sealed(library, namespace, [1])
    library.close()
    library = open_library(Bounds(max_namespaces=2))
    changed = []
    change = library._database.change
    library._database.change = lambda *args, **more: (changed.append(args), change(*args, **more))
    library.work()
    assert [len(removed) for _, removed, *_ in changed] == [3]
    assert library.stats().namespaces == 2


def test_an_id_may_be_used_again_once_its_text_has_ended(open_library):
    library = open_library()
    teach(library, "a", [1])
    teach(library, "a", [2])
    assert [list(text) for text in recent(library, "a")] == [[1], [2]]


def test_where_nothing_was_learned_there_is_no_segment(open_library):
    library = open_library()
    sealed(library, "a", [1])
    for _ in range(2):
        library.seal("a")
        library.seal("b")
        library.work()
    assert library.stats().segments == library._state.counts.seals == 1


def test_what_is_no_token_is_refused_and_nothing_is_learned(open_library):
    library = open_library()
    for wrong in ([-1], [1 << 31]):
        with pytest.raises((ValueError, OverflowError)):
            library.learn("a", 1, wrong)
    sealed(library, "a", [1])
    assert said(library, "a") == [[1]]


def test_it_is_there_again_after_a_restart(open_library):
    library = open_library()
    sealed(library, "a", [1, 2])
    teach(library, "a", [3, 4])
    library.close()
    library = open_library()
    assert recent(library, "a") == [array("i", [3, 4])]
    assert said(library, "a") == [[1, 2]]


def test_a_version_tells_of_other_segments(open_library):
    library = open_library()
    assert library.version("a") == 0
    seen = {0}
    for tokens in ([1], [2], [3]):
        sealed(library, "a", tokens)
        library.segments("a")
        library.work()
        assert library.version("a") not in seen
        seen.add(library.version("a"))
    before = library.version("a")
    library.work()
    assert library.version("a") == before


def test_who_asks_first_gets_segments_a_little_later(open_library):
    library = open_library()
    sealed(library, "a", [1])
    assert library.segments("a") == []
    before = library.version("a")
    library.work()
    assert library.version("a") != before
    assert len(library.segments("a")) == 1


def test_a_segment_that_was_merged_is_readable_as_long_as_somebody_has_it(open_library):
    library = open_library()
    sealed(library, "a", [1, 2, 3])
    (first,) = segments(library, "a")
    for _ in range(3):
        sealed(library, "a", [4])
    (merged,) = segments(library, "a")
    assert merged is not first and merged.tokens == 6
    assert [list(text) for text in read_texts(first)] == [[1, 2, 3]]
    assert problems(merged) == []
    file = weakref.ref(first._file)
    library.release(first)
    del first
    assert file() is not None
    library.work()
    assert file() is None


def test_small_segments_become_large_ones_and_stay_few(open_library):
    library = open_library(Bounds(max_tokens=60_000))
    for turn in range(60):
        sealed(library, "a", range(turn, turn + 900))
        assert library.stats().segments <= 8
    assert library.stats().tokens == 60 * 900
    assert max(segment.tokens for segment in segments(library, "a")) <= 10_000


def test_a_seal_that_is_larger_than_a_segment_may_be_is_several(open_library):
    library = open_library(Bounds(max_tokens=600))
    sealed(library, "a", range(250), range(1000, 1040))
    assert sorted(len(text) for text in said(library, "a")) == [40, 50, 100, 100]


def test_of_a_namespace_that_is_full_the_oldest_goes(open_library, clock):
    library = open_library(Bounds(max_tokens=600))
    for turn in range(8):
        clock.time += 1
        sealed(library, "a", range(turn * 100, turn * 100 + 100))
    assert sorted(text[0] for text in said(library, "a")) == [200, 300, 400, 500, 600, 700]
    assert library.stats().evicted_tokens == 200


def test_bytes_are_bounded_over_all_namespaces(open_library, clock):
    library = open_library(Bounds(max_bytes=200_000, unsealed_bytes=5000))
    for turn in range(40):
        clock.time += 1
        sealed(library, f"space {turn % 4}", range(turn, turn + 1000))
        assert library.stats().bytes <= 200_000
    assert library.stats().evicted_tokens
    assert library.stats().namespaces == 4


def test_its_files_are_little_more_than_its_bytes_whatever_is_in_the_log(open_library, clock, tmp_path):
    """What was evicted last is still there, and text that came since."""
    library, most = open_library(Bounds(max_bytes=4 << 20)), 0
    for turn in range(30):
        clock.time += 1
        teach(library, f"space {turn % 3}", range(turn, turn + 30_000))
        library.write()
        library.work()
        most = max(most, sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()))
    assert 3 << 20 < most <= 5 << 20


def test_namespaces_are_bounded_and_the_one_that_learned_nothing_for_the_longest_time_goes(open_library, clock):
    library = open_library(Bounds(max_namespaces=3))
    for name in ("space 0", "space 1", "space 2", "space 0", "space 3"):
        clock.time += 100
        sealed(library, name, [int(name[-1])])
    assert [said(library, f"space {turn}") for turn in range(4)] == [[[0], [0]], [], [[2]], [[3]]]


def test_a_namespace_that_comes_again_has_another_version(open_library, clock):
    library = open_library(Bounds(max_namespaces=1))
    sealed(library, "a", [1])
    before = library.version("a")
    clock.time += 1
    sealed(library, "b", [1])
    assert library.version("a") == 0
    clock.time += 1
    sealed(library, "a", [1])
    assert library.version("a") not in (0, before)


def test_namespaces_that_were_never_sealed_are_bounded_too(open_library):
    library = open_library(Bounds(max_namespaces=3))
    for turn in range(10):
        library.learn(f"space {turn}", 1, [turn])
    library.work()
    assert [bool(recent(library, f"space {turn}")) for turn in range(10)] == [False] * 7 + [True] * 3
    assert library.stats().dropped_tokens == 7


def test_tokens_on_their_way_are_bounded(open_library):
    library = open_library(Bounds(unsealed_bytes=450))
    library.learn("a", 1, range(90))
    library.learn("a", 1, range(80))
    library.learn("a", 1, [5])
    assert [len(text) for text in recent(library, "a")] == [90, 1]
    assert library.stats().dropped_tokens == 80


def test_tiny_texts_are_bounded_as_well_for_whoever_listens_too(open_library):
    bounds = Bounds(unsealed_bytes=100_000)
    library, other = open_library(bounds), open_library(bounds)
    for turn in range(3000):
        library.learn(f"space {turn % 100}", turn, [turn])
    library.write()
    assert sum(len(recent(library, f"space {turn}")) for turn in range(100)) == 50_000 // 65
    other.work()
    assert other.stats().segments and other.stats().tokens + other.stats().learning_tokens == 50_000 // 65


def test_what_was_on_disk_is_taken_over_also_where_bounds_are_small_now(open_library):
    library = open_library()
    teach(library, "a", *([turn] * 40 for turn in range(600)))
    library.close()
    library = open_library(Bounds(unsealed_bytes=100_000))
    assert library.stats().learning_tokens == 600 * 40
    library.work()
    assert library.stats().learning_tokens == library.stats().dropped_tokens == 0
    assert len(said(library, "a")) == 600


def test_what_nobody_seals_becomes_a_segment_when_there_is_no_room(open_library):
    library = open_library(Bounds(unsealed_bytes=100_000))
    for turn in range(2000):
        library.learn("a", turn, [turn])
        library.end("a", turn)
        if turn % 100 == 0:
            library.work()
    assert library.stats().dropped_tokens == 0
    assert len(said(library, "a")) + len(recent(library, "a")) == 2000


def test_text_in_no_segment_yet_stays_within_its_bound_and_nothing_is_lost(open_library):
    library = open_library(Bounds(unsealed_bytes=20_000))
    library.learn("quiet", 1, [7])
    for turn in range(200):
        teach(library, "loud", range(turn, turn + 100))
        library.write()
        library.work()
        assert library.stats().learning_tokens < 30_000 // 4
    library.close()
    library = open_library()
    assert [list(text) for text in recent(library, "quiet")] == [[7]]
    assert len(said(library, "loud") + recent(library, "loud")) == 200


def test_names_of_namespaces_are_never_names_of_files(open_library, tmp_path):
    library = open_library()
    for name in ("../secret", "/secret", "", "secret" * 100, "secret\0", "\ud800secret"):
        sealed(library, name, [1, 2])
        teach(library, name, [3])
        assert said(library, name) == [[1, 2]]
    library.write()
    for path in tmp_path.rglob("*"):
        assert "secret" not in str(path)
        assert path.is_dir() or b"secret" not in path.read_bytes()


def test_only_the_owner_may_look(open_library, tmp_path):
    before = os.umask(0)
    try:
        library = open_library(folder=tmp_path / "new")
        sealed(library, "a", [1, 2])
        library.add_corpus("a", "notes", 0, [[1]])
        teach(library, "a", [3])
        library.write()
        library.work()
    finally:
        os.umask(before)
    for path in [tmp_path / "new", *(tmp_path / "new").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_without_a_folder_nothing_is_left(open_library):
    library = open_library(folder=None)
    root = library._folder.root
    sealed(library, "a", [1, 2])
    assert said(library, "a") == [[1, 2]]
    library.close()
    assert not root.parent.exists()


def test_what_a_killed_process_kept_in_memory_is_removed_by_the_next(open_library):
    gone = open_library(folder=None)
    folder, lock = gone._private.peek()[2]
    os.close(lock)
    gone._private.detach()
    open_library(folder=None)
    assert not folder.exists()


def test_a_full_disk_costs_nothing_but_time(open_library, clock, monkeypatch, caplog):
    library = open_library()
    teach(library, "a", [1, 2])
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _full)
        for _ in range(5):
            library.learn("a", 7, [3])
            library._steps.do(library.write)
            library.seal("a")
            library.work()
    assert library.stats().failures and library.stats().unwritable == 1
    assert caplog.text.count("the store can't be written") == 1
    clock.time += 60
    library._steps.do(library.write)
    library.work()
    assert library.stats().unwritable == 0
    assert sorted(said(library, "a")) == [[1, 2], [3] * 5]


def _full(_file):
    raise OSError(28, "No space left on device")


def test_files_that_a_crash_has_left_go_at_the_next_start_with_nobody_else_there(open_library, tmp_path):
    library = open_library()
    sealed(library, "a", [1])
    folder = library._folder.segments
    for name in (f"{0:024x}.learned", f".{0:024x}.learned.x.part"):
        (folder / name).write_bytes(b"half")
    open_library().close()
    assert len(list(folder.iterdir())) == 3
    library.close()
    library = open_library()
    assert len(list(folder.iterdir())) == 1 and said(library, "a") == [[1]]


def test_a_build_that_fails_leaves_no_file(open_library, monkeypatch):
    library = open_library(Bounds(max_tokens=600))
    teach(library, "a", range(250))
    library.seal("a")
    build, built = Segment.build, []

    def second_fails(*args):
        built.append(args)
        return build(*args) if len(built) < 2 else _full(None)

    monkeypatch.setattr(Segment, "build", second_fails)
    library.work()
    assert library.stats().failures == 1 and not list(library._folder.segments.iterdir())


def test_threads_write_and_work_by_themselves(tmp_path):
    library = Library(tmp_path, "words")
    threads = [thread._thread for thread in library._threads]
    for turn in range(20):
        library.learn("a", turn, [1, 2, 3])
        library.seal("a")
    library.close()
    assert not any(thread.is_alive() for thread in threads)
    library = Library(tmp_path, "words", threads=False)
    assert sum(map(len, recent(library, "a"))) + library.stats().tokens == 60
    library.close()


def test_text_that_is_learned_and_sealed_after_the_write_of_a_round_is_sealed(open_library, monkeypatch):
    library = open_library()

    def meanwhile():
        library.learn("a", 1, list(range(300)))
        library.seal("a")

    monkeypatch.setattr(library._builder, "make_room_to_learn", meanwhile)
    library.work()
    assert library.stats().segments == 1
