"""Where texts of a model with states go on, and where their states are kept. Pages have 4 tokens; the states of running
sequences are 0 to 7, those that are kept follow."""

from __future__ import annotations

from typing import Any, NamedTuple

from driving import request, token_for_each
from msgspec.structs import replace
from paged_fake import EOS, VOCABULARY

from services.worker.scheduling.events import Arrived, Cancelled, EngineFailed
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler

TEXT = list(range(1, 21))


class Ran(NamedTuple):
    rows: list[tuple[int, int]]  # position of the first, and number
    copies: list[tuple[int, int]]  # of states


def with_states(kept: int = 4, **more: Any) -> Scheduler:
    fields: dict[str, Any] = {"page_tokens": 4, "pages": 64, "max_step_tokens": 64, "max_sequences": 8, **more}
    return Scheduler(Limits(VOCABULARY, 64, (EOS,), first_snapshot=8, snapshots=kept, **fields))


def arrive(scheduler: Scheduler, sequence_id: int, prompt: list[int], salt: str = "", tokens: int = 9) -> None:
    generate = replace(request(prompt, max_tokens=tokens, ignore_eos=True), cache_salt=salt)
    assert scheduler.handle(Arrived(generate, sequence_id)) == []


def step(scheduler: Scheduler) -> Ran:
    work, _, _ = token_for_each(scheduler, 30)
    return Ran([(item.start, len(item.tokens)) for item in work.items], work.states)


def finish(scheduler: Scheduler) -> list[Ran]:
    """All steps until nothing is left."""
    steps = []
    while scheduler.has_work:
        steps.append(step(scheduler))
    scheduler.check_idle()
    return steps


def served(scheduler: Scheduler, prompt: list[int], sequence_id: int, salt: str = "") -> list[Ran]:
    """All steps of a request that gets three tokens."""
    arrive(scheduler, sequence_id, prompt, salt, tokens=3)
    return finish(scheduler)


def test_a_state_is_kept_at_the_last_end_of_a_page_and_a_text_goes_on_from_it() -> None:
    scheduler = with_states()
    first = served(scheduler, TEXT[:11], 1)
    [(own, kept)] = first[1].copies
    assert own < 8 <= kept
    assert first[:3] == [Ran([(0, 8)], []), Ran([(8, 3)], [(own, kept)]), Ran([(11, 1)], [])]
    again = served(scheduler, TEXT[:11], 2)
    assert [ran.rows for ran in again] == [[(8, 3)], [(11, 1)], [(12, 1)]]
    [(source, target)] = again[0].copies
    assert source == kept and target < 8 and not again[1].copies
    # The answer's pages are there, too, but no state behind them.
    longer = served(scheduler, [*TEXT[:11], 30, 30, *TEXT[:5]], 3)
    assert longer[0].rows == [(8, 4)] and longer[0].copies[0][0] == kept


def test_texts_that_part_keep_a_state_where_they_do() -> None:
    scheduler = with_states()
    served(scheduler, [*TEXT[:8], *TEXT[:7]], 1)
    parts = served(scheduler, [*TEXT[:8], *TEXT[4:12]], 2)
    assert [ran.rows for ran in parts[:3]] == [[(0, 8)], [(8, 4)], [(12, 4)]]
    assert served(scheduler, [*TEXT[:8], 40, 41], 3)[0].rows == [(8, 2)]


def test_a_short_text_and_one_of_another_salt_keep_and_find_nothing() -> None:
    scheduler = with_states()
    assert [ran.copies for ran in served(scheduler, TEXT[:4], 1)] == [[], [], []]
    served(scheduler, TEXT, 2, salt="a")
    assert served(scheduler, TEXT, 3, salt="b")[0].rows == [(0, 16)]


def test_the_least_recently_used_state_gives_way() -> None:
    scheduler = with_states(kept=1)
    served(scheduler, TEXT, 1)
    served(scheduler, TEXT[::-1], 2)
    assert served(scheduler, TEXT[::-1], 3)[0].rows == [(16, 4)]
    assert served(scheduler, TEXT, 4)[0].rows == [(0, 16)]


def test_a_state_is_kept_before_its_sequences_place_is_given_to_another() -> None:
    scheduler = with_states(max_sequences=1)
    arrive(scheduler, 1, TEXT)
    step(scheduler)
    scheduler.handle(Cancelled(1))
    arrive(scheduler, 2, [*TEXT[:16], 45, 46])
    # It is kept first, and then it is where the other one begins.
    rows, [(own, kept), (source, target)] = step(scheduler)
    assert rows == [(16, 2)] and (own, source) == (target, kept) == (0, kept)
    finish(scheduler)


def test_a_preempted_text_goes_on_from_its_state() -> None:
    scheduler = with_states()
    arrive(scheduler, 1, TEXT)
    for _ in range(3):
        step(scheduler)
    scheduler.planner.preempt(scheduler.running[0])
    # Of 22 tokens 20 are in whole pages, and the state is that behind 16.
    ran = step(scheduler)
    assert ran.rows == [(16, 4)] and len(ran.copies) == 1
    finish(scheduler)


def test_behind_a_failure_of_the_engine_nothing_is_found() -> None:
    scheduler = with_states()
    served(scheduler, TEXT, 1)
    arrive(scheduler, 2, TEXT)
    scheduler.schedule()
    scheduler.handle(EngineFailed("gone"))
    scheduler.check_idle()
    ran = served(scheduler, TEXT, 3)[0]
    assert ran == Ran([(0, 16)], [])


def test_without_room_for_states_nothing_is_shared() -> None:
    scheduler = with_states(kept=0, prefix_cache=False)
    assert [ran.rows for ran in served(scheduler, TEXT, 1)[:1]] == [[(0, 20)]]
    assert served(scheduler, TEXT, 2)[0] == Ran([(0, 20)], [])
