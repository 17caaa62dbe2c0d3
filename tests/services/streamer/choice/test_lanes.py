"""Many things are done a few at a time, in their order, until one of them fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from in_memory_wire import chat, choice_of

from services.streamer.choice.lanes import in_lanes
from services.streamer.choice.turns import NUMBERS_OF_A_UNIT, Turns
from services.streamer.openai.errors import ApiError


async def test_results_come_in_the_order_of_the_things_and_no_more_run_than_there_are_lanes() -> None:
    running, most = 0, 0
    gates = [asyncio.Event() for _ in range(7)]

    async def act(thing: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gates[thing].wait()
        running -= 1
        # The one before it ends last.
        gates[(thing - 1) % 7].set()
        return thing * thing

    # 0, 1 and 2 run first, and 2 ends before the others.
    gates[2].set()
    gates[3].set()
    made = await in_lanes(act, range(7), 3, Turns())
    assert (made, most) == ([each * each for each in range(7)], 3)


async def test_the_first_failure_that_a_client_is_told_of_cancels_the_others() -> None:
    cancelled: list[int] = []

    async def act(thing: int) -> None:
        if thing == 1:
            raise ApiError(400, "wrong")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(thing)
            raise

    with pytest.raises(ApiError, match="wrong"):
        await in_lanes(act, range(9), 3, Turns())
    assert sorted(cancelled) == [0, 2]


async def test_one_thing_needs_no_task() -> None:
    async def act(thing: str) -> asyncio.Task[None] | None:
        return asyncio.current_task()  # type: ignore[return-value]

    assert await in_lanes(act, ["one"], 4, Turns()) == [asyncio.current_task()]


async def test_what_is_more_to_begin_takes_a_turn_of_the_loop_for_itself() -> None:
    """128 choices with 49 000 allowed ids each are no slice of one turn."""
    begun: list[int] = []

    def turn() -> None:
        begun.append(0)
        if len(begun) < 60:
            asyncio.get_running_loop().call_soon(turn)

    async def act(thing: int) -> None:
        begun[-1] += 1

    turn()
    await in_lanes(act, range(20), 20, Turns(1000), lambda thing: 950)
    assert sum(begun) == 20 and max(begun) == 1


def test_a_choice_is_as_much_to_send_as_it_has_numbers() -> None:
    choice = choice_of(chat(), 0)
    assert choice.work_to_send == 0
    choice.prompt = [1] * 4000
    choice.sampling = replace(choice.sampling, allowed_token_ids=list(range(49_000)))
    assert choice.work_to_send == 53_000 // NUMBERS_OF_A_UNIT
