"""How long nobody looks for drafts: longer and longer while there are none, and shortly again after one."""

from __future__ import annotations

from services.worker.speculation.rest import LEAST_SEQUENCES, LONGEST, SHORTEST, Rest


def looks(rest: Rest, steps: int, *, finds: bool = False, sequences: int = LEAST_SEQUENCES) -> list[int]:
    """The steps that look, of so many."""
    looked = []
    for step in range(steps):
        if not rest.goes_on(sequences):
            looked.append(step)
            if finds:
                rest.prevent()
                rest.shorten()
        rest.begin(sequences)
    return looked


def test_rests_double_up_to_the_longest_while_looks_find_nothing() -> None:
    found = looks(Rest(), 100)
    assert [after - before for before, after in zip(found, found[1:], strict=False)][:6] == [2, 4, 8, 16, 16, 16]
    assert LONGEST == 16


def test_each_step_looks_while_looks_find_something() -> None:
    assert looks(Rest(), 10, finds=True) == list(range(10))


def test_a_look_that_finds_something_makes_rests_short_again() -> None:
    rest = Rest()
    assert looks(rest, 31) == [0, 2, 6, 14, 30]
    rest.end()
    assert looks(rest, 1, finds=True) == [0]
    assert looks(rest, 1 + SHORTEST) == [0, SHORTEST]


def test_a_sequence_that_leaves_or_comes_ends_the_rest() -> None:
    rest = Rest()
    assert looks(rest, 3) == [0, 2]
    rest.end()
    assert looks(rest, 1) == [0]
    assert looks(rest, 1, sequences=LEAST_SEQUENCES + 1) == [0]


def test_few_sequences_have_no_rest() -> None:
    assert looks(Rest(), 5, sequences=LEAST_SEQUENCES - 1) == list(range(5))
