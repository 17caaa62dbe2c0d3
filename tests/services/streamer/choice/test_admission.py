from __future__ import annotations

import asyncio
import contextlib

import pytest

from services.streamer.choice.admission import Admission, above_share, draining
from services.streamer.openai.errors import ApiError


def admission(max_waiting: int = 2, request_timeout: float = 60.0) -> Admission:
    return Admission(max_waiting, request_timeout)


async def test_what_is_admitted_is_counted_until_its_end() -> None:
    ours = admission()
    async with ours.admit(2):
        assert ours.running == 2
    assert ours.running == 0


async def test_a_full_door_answers_429_and_says_when_to_come_back() -> None:
    ours = admission()
    async with ours.admit(2):
        with pytest.raises(ApiError) as caught:
            ours.admit(1)
    assert (caught.value.status, caught.value.retry_after) == (429, 1)
    async with ours.admit(1):
        pass


async def test_a_request_that_can_never_fit_is_a_400() -> None:
    with pytest.raises(ApiError) as caught:
        admission().admit(3)
    assert (caught.value.status, caught.value.param) == (400, "n")


async def test_a_request_past_its_deadline_ends_with_504() -> None:
    ours = admission(request_timeout=0.0)
    with pytest.raises(ApiError) as caught:
        async with ours.admit(1):
            await asyncio.Event().wait()
    assert caught.value.status == 504
    assert ours.running == 0


async def test_a_failing_request_is_counted_out_too() -> None:
    ours = admission()
    with pytest.raises(ZeroDivisionError):
        async with ours.admit(1):
            raise ZeroDivisionError
    assert ours.running == 0


async def test_draining_waits_for_those_inside_and_lets_nobody_in() -> None:
    ours = admission()
    go_on = asyncio.Event()

    async def request() -> str:
        async with ours.admit(1):
            await go_on.wait()
        return "whole"

    running = asyncio.create_task(request())
    await asyncio.sleep(0)
    drained = asyncio.create_task(ours.drain(60.0))
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as caught:
        ours.admit(1)
    assert (caught.value.status, caught.value.retry_after) == (503, 5)
    assert not drained.done()
    go_on.set()
    await drained
    assert await running == "whole"


async def test_draining_ends_those_that_take_too_long_with_a_reason() -> None:
    ours = admission()

    async def request() -> None:
        async with ours.admit(1):
            await asyncio.Event().wait()

    running = asyncio.create_task(request())
    await asyncio.sleep(0)
    await ours.drain(0.0)
    with pytest.raises(ApiError) as caught:
        await running
    assert caught.value.code == draining().code


async def test_a_cancelled_request_stays_cancelled() -> None:
    ours = admission()

    async def request() -> None:
        async with ours.admit(1):
            await asyncio.Event().wait()

    running = asyncio.create_task(request())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ours.running == 0


# The mesh, and several keys ----------------------------------------------------------------------------------------


async def test_what_other_streamers_hold_counts() -> None:
    held = 4
    ours = Admission(4, 60.0, elsewhere=lambda: (1, held))
    with pytest.raises(ApiError) as caught:
        ours.admit(1)
    assert caught.value.status == 429
    held = 3
    async with ours.admit(1):
        assert ours.running == 1


async def test_others_that_are_not_heard_of_yet_are_taken_to_have_grown_as_much_as_this_one() -> None:
    ours = Admission(8, 60.0, elsewhere=lambda: (3, 0))
    async with ours.admit(1), ours.admit(1):
        with pytest.raises(ApiError) as caught:
            ours.admit(1)
    assert caught.value.status == 429


async def test_one_key_cannot_keep_the_others_out_and_one_alone_has_all_but_a_quarter() -> None:
    ours = Admission(16, 60.0, callers=lambda: 2)
    async with contextlib.AsyncExitStack() as greedy:
        for _ in range(12):
            await greedy.enter_async_context(ours.admit(1, b"greedy"))
        with pytest.raises(ApiError) as caught:
            ours.admit(1, b"greedy")
        assert caught.value.status == 429 and "share" in caught.value.message
        for _ in range(4):
            await greedy.enter_async_context(ours.admit(1, b"modest"))
    async with ours.admit(12, b"modest"):
        assert ours.running == 12


async def test_a_server_without_several_keys_gives_its_one_caller_everything() -> None:
    ours = Admission(4, 60.0)
    async with ours.admit(4, b""):
        assert ours.running == 4


@pytest.mark.parametrize("active", [1, 2, 5, 50])
def test_a_caller_below_an_equal_share_is_never_refused_for_it(active: int) -> None:
    limit = 100
    share = limit // max(2, active)
    assert not any(above_share(held, total, active, limit) for held in range(share + 1) for total in range(limit + 1))
