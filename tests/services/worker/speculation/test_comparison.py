"""Whether looking for drafts pays, by the time between steps."""

from __future__ import annotations

from services.worker.speculation.comparison import (
    DOUBLED,
    FIRST,
    HOLDS,
    MEASURED,
    OUTLIER,
    REST,
    WINDOW,
    Comparison,
)

STEP = 0.001


class Steps:
    """Of ten sequences. Whether it is to rest is asked behind each step that looks, as the controller does."""

    def __init__(self) -> None:
        self.comparison, self.now = Comparison(), 0.0
        self.pass_one(0.0)

    def pass_one(self, seconds: float, tokens: int = 10, *, rested: bool = True, prompts: bool = False) -> int:
        self.now += seconds
        self.comparison.passed(self.now, 10, tokens, rested=rested, prompts=prompts)
        return 0 if rested else self.comparison.rest()

    def rest(self, steps: int = 8, seconds: float = STEP) -> None:
        assert [self.pass_one(seconds) for _ in range(steps)] == [0] * steps

    def look(self, seconds: float, tokens: int, steps: int = FIRST + WINDOW) -> list[int]:
        return [self.pass_one(seconds, tokens, rested=False) for _ in range(steps)]


def test_steps_that_take_longer_than_their_tokens_would_without_drafts_are_followed_by_longer_rests() -> None:
    steps = Steps()
    for lost in [*range(DOUBLED + 1), DOUBLED]:
        steps.rest()
        *before, rest = steps.look(2 * STEP, tokens=19)
        assert before == [0] * (FIRST + WINDOW - 1)
        assert abs(rest - REST / STEP * 2**lost) <= 2**lost
    steps.rest()
    assert not any(steps.look(2 * STEP, tokens=21, steps=FIRST + 4 * WINDOW)), "they pay"
    *before, rest = steps.look(2 * STEP, tokens=17, steps=2 * WINDOW)
    assert not any(before) and abs(rest - REST / STEP) <= 1, "what was won counts, and the next rest is short again"


def test_steps_that_rest_between_those_that_look_change_nothing() -> None:
    steps = Steps()
    rests = []
    for _ in range(FIRST + WINDOW):
        steps.rest()
        rests += steps.look(2 * STEP, tokens=19, steps=1)
    assert rests[-1] > 0 and not any(rests[:-1])


def test_the_first_steps_that_only_ask_and_steps_with_prompts_and_pauses_say_nothing() -> None:
    steps = Steps()
    steps.rest()
    steps.look(10 * STEP, tokens=10, steps=FIRST)
    steps.pass_one(1.0, rested=False, prompts=True)
    steps.comparison.pause()
    steps.pass_one(1.0, rested=False)
    assert not any(steps.look(STEP, tokens=11, steps=WINDOW))


def test_where_no_step_without_drafts_was_measured_lately_some_are() -> None:
    steps = Steps()
    assert steps.look(STEP, tokens=50)[-1] == MEASURED
    steps.rest()
    assert not any(steps.look(STEP, tokens=50))
    steps.now += HOLDS
    steps.comparison.pause()
    assert steps.pass_one(0.0, rested=False) == 0
    assert MEASURED in steps.look(STEP, tokens=50, steps=WINDOW)


def test_one_step_that_was_descheduled_hardly_moves_what_is_known() -> None:
    steps = Steps()
    steps.rest(32)
    steps.pass_one(1.0)
    mean = 1 + (OUTLIER - 1) / 32
    assert not any(steps.look(STEP * mean * 1.01 * 2, tokens=21, steps=FIRST + WINDOW))
    assert any(steps.look(STEP * mean * 1.2 * 2, tokens=21, steps=FIRST + WINDOW))
