"""An automaton's bounds, its growth, and what it tells of itself."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from automaton_problems import problems, transitions

from services.proposer.fast.automaton import loops
from services.proposer.fast.automaton.automaton import FastAutomaton
from services.proposer.fast.automaton.records import FOLLOWER
from services.proposer.native import Record, carray, ints_at, kept, pointer_to

follower_at = pointer_to(FOLLOWER)


def some_text(length: int, seed: int = 3, alphabet: int = 30) -> array[int]:
    """Half of it copied from itself."""
    chance = random.Random(seed)
    text = array("i", [1])
    while len(text) < length:
        if chance.random() < 0.3:
            at = chance.randrange(len(text))
            text.extend(text[at : at + chance.randint(2, 40)])
        else:
            text.append(chance.randrange(alphabet))
    return text[:length]


@kept
def _write(address: int, writer_at: int, text_at: int, count: int) -> tuple[int, int]:
    """(how many tokens were taken, what became of the next one): what step.py does with it, and nothing else."""
    tables, writer = loops.opened(address), carray(follower_at(writer_at), 1)[0]
    text = carray(ints_at(text_at), count)
    for at in range(count):
        found = loops.write(tables, writer, np.int64(text[at]))
        if found != loops.WRITTEN:
            return at, found
    return count, loops.WRITTEN


def begin(automaton: FastAutomaton) -> Record:
    writer: Record = np.zeros(1, FOLLOWER)
    writer["automaton_at"] = automaton.address
    return writer


def write(automaton: FastAutomaton, text: array[int], slice_of: int = 10**9) -> int:
    """How much of it was taken."""
    writer, taken = begin(automaton), 0
    for at in range(0, len(text), slice_of):
        taken += add(automaton, writer, text[at : at + slice_of])
    return taken


def add(automaton: FastAutomaton, writer: Record, piece: array[int]) -> int:
    taken, found = 0, int(loops.NEEDS_ROOM)
    while found == loops.NEEDS_ROOM:
        begin = piece.buffer_info()[0] + 4 * taken
        more, found = _write(automaton.address, writer.ctypes.data, begin, len(piece) - taken)
        taken += more
        if found == loops.NEEDS_ROOM:
            automaton.grow()
    return taken


def followed(automaton: FastAutomaton, context: list[int], count: int) -> list[int]:
    """The most frequent tokens behind a context that is known."""
    states, edges = transitions(automaton)
    state, found = 0, []
    for token in context:
        state = edges[state][token]
    for _ in range(count):
        found.append(int(states[state]["best"]))
        state = edges[state][found[-1]]
    return found


def test_a_full_automaton_takes_as_many_tokens_as_it_was_made_for_and_goes_on_answering() -> None:
    automaton, text = FastAutomaton(16, max_tokens=500), some_text(2000)
    assert write(automaton, text) == 500 == automaton.tokens
    assert write(automaton, text) == 0
    assert problems(automaton) == []
    assert followed(automaton, text[100:140].tolist(), 4) == text[140:144].tolist()


@pytest.mark.parametrize("max_bytes", [0, 500, 5_000, 60_000])
def test_an_automaton_never_holds_more_bytes_than_it_may(max_bytes: int) -> None:
    automaton, text = FastAutomaton(16, max_bytes=max_bytes), some_text(5000)
    taken = write(automaton, text, slice_of=7)
    assert taken < 5000 and automaton.tokens == taken
    # An empty one holds its root.
    assert automaton.held_bytes() <= max(max_bytes, FastAutomaton(16).held_bytes())
    assert max_bytes - automaton.held_bytes() < 2000
    assert problems(automaton) == []


def test_one_token_that_follows_everything_does_not_burst_the_bounds() -> None:
    """Its append adds a transition to each of 3000 contexts at once."""
    text = array("i", [*[1] * 1500, *[2] * 1500])
    automaton = FastAutomaton(16)
    write(automaton, text)
    rest = FastAutomaton(16, max_bytes=automaton.held_bytes() + 10_000)
    assert write(rest, text + array("i", [3])) == len(text)
    assert rest.held_bytes() == automaton.held_bytes()
    assert problems(rest) == []
    assert write(automaton, array("i", [3])) == 1


def test_grown_in_any_slices_it_is_the_same_automaton() -> None:
    text = some_text(20_000)
    whole, sliced = FastAutomaton(32), FastAutomaton(32)
    write(whole, text)
    write(sliced, text, slice_of=13)
    assert problems(sliced) == []
    for one, other in zip(whole.tables(), sliced.tables(), strict=True):
        assert one.tolist() == other.tolist()


def test_memory_stays_within_140_bytes_a_token() -> None:
    automaton = FastAutomaton(64)
    write(automaton, some_text(50_000, alphabet=3000))
    assert 40 < automaton.held_bytes() / automaton.tokens < 140


def test_memory_is_copied_where_the_system_cannot_move_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import mmap

    class Rigid(mmap.mmap):
        def resize(self, newsize: int) -> None:
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr(mmap, "mmap", Rigid)
    automaton, text = FastAutomaton(16), some_text(3000)
    assert write(automaton, text, slice_of=100) == 3000
    assert problems(automaton) == []


def test_the_validator_notices_a_wrong_count_a_lost_entry_and_a_wrong_link(monkeypatch: pytest.MonkeyPatch) -> None:
    automaton = FastAutomaton(8)
    write(automaton, some_text(300))
    states, entries, buckets = automaton.tables()

    def seen(**changed: object) -> list[str]:
        tables = {"states": states, "entries": entries, "buckets": buckets, **changed}
        monkeypatch.setattr(FastAutomaton, "tables", lambda self: tuple(tables.values()))
        return problems(automaton)

    assert seen() == []
    for field in ("length", "link", "count", "best_count", "best", "token", "target"):
        wrong = states.copy()
        wrong[5][field] += 40
        assert seen(states=wrong), field
    lost = buckets.copy()
    lost[buckets.nonzero()[0][0]] = 0
    assert seen(buckets=lost)
    for field in ("token", "target", "next_of_source"):
        wrong = entries.copy()
        wrong[3][field] = 1
        assert seen(entries=wrong), field


def test_texts_written_in_turns_make_as_many_states_as_one_after_the_other() -> None:
    texts = [some_text(2000, seed=seed // 2) for seed in range(8)]
    one_by_one, in_turns = FastAutomaton(16), FastAutomaton(16)
    for text in texts:
        write(one_by_one, text)
    writers = [begin(in_turns) for _ in texts]
    for at in range(0, 2000, 3):
        for writer, text in zip(writers, texts, strict=True):
            add(in_turns, writer, text[at : at + 3])
    assert problems(in_turns) == []
    assert in_turns.held_bytes() == one_by_one.held_bytes()
    assert [len(table) for table in in_turns.tables()] == [len(table) for table in one_by_one.tables()]
