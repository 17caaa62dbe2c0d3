"""Which steps look for drafts."""

from __future__ import annotations

import pytest

from services.worker.speculation.rest import JOINED, MOST_STEPS, SECONDS, STEPS, Rest


def step(rest: Rest, *, questions: int = 1, finds: bool = False, sequences: int = 32, drafting: bool = True) -> bool:
    """Whether it looks. `questions`: how often it is asked for that before its launch."""
    rests = [rest.goes_on() for _ in range(questions)]
    assert len(set(rests)) == 1
    if not rests[0]:
        rest.looked()
        if finds:
            rest.prevent()
    rest.launched()
    if not finds:
        rest.begin(sequences, drafting)
    return not rests[0]


def test_while_nothing_is_found_one_step_in_eight_looks_however_often_a_step_asks() -> None:
    for questions in (1, 2):
        rest = Rest(32)
        looks = [step(rest, questions=questions) for _ in range(3 * STEPS)]
        assert [place for place, looked in enumerate(looks) if looked] == [0, STEPS, 2 * STEPS]


def test_a_look_tells_how_many_steps_it_is_for() -> None:
    rest = Rest(32)
    assert [rest.goes_on(), rest.looked()] == [False, 1]
    rest.launched()
    rest.begin(32, True)
    for _ in range(STEPS - 1):
        assert step(rest) is False
    assert [rest.goes_on(), rest.looked()] == [False, STEPS]


@pytest.mark.parametrize(
    ("seconds", "steps"), [(0.0, STEPS), (SECONDS, STEPS), (SECONDS / 20, 20), (SECONDS / 1000, MOST_STEPS)]
)
def test_where_steps_are_short_a_rest_has_more_of_them_but_not_too_many(seconds: float, steps: int) -> None:
    rest = Rest(8)
    assert not rest.goes_on()
    rest.looked()
    rest.launched()
    rest.begin(8, True, seconds)
    assert sum(not step(rest) for _ in range(steps)) == steps - 1


def test_a_sequence_that_comes_to_many_waits_a_moment_for_its_look_and_one_that_comes_to_few_does_not() -> None:
    rest = Rest(8)
    for sequences, seconds, rested in ((8, JOINED / 4, 3), (8, JOINED * 2, 0), (8, 0.0, 0), (7, JOINED / 4, 0)):
        while not step(rest):
            pass
        rest.join(sequences, seconds)
        assert [step(rest) for _ in range(rested + 1)] == [False] * rested + [True]
    # Where drafts lose nothing looks sooner for it; with few sequences it does.
    for sequences, looks in ((8, False), (7, True)):
        rest.force(20)
        rest.join(sequences, JOINED / 4)
        assert any(step(rest) for _ in range(15)) == looks


def test_few_sequences_look_in_each_step_and_where_none_may_have_a_draft_none_does() -> None:
    rest = Rest(8)
    assert all(step(rest, sequences=7) for _ in range(20))
    assert all(step(rest, finds=True) for _ in range(20))
    assert [step(rest, sequences=1, drafting=False) for _ in range(20)] == [True] + [False] * 19
    rest.end()
    assert step(rest)
