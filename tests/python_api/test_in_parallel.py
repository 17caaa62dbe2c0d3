"""How many requests of a call are in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from specmesh.connection import in_parallel


async def test_no_more_items_are_taken_than_are_worked_on_at_a_time() -> None:
    taken: list[int] = []
    tasks: list[int] = []
    done = 0

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    async def work(item: int) -> int:
        nonlocal done
        await asyncio.sleep(0)
        assert len(taken) - done <= 7
        tasks.append(len(asyncio.all_tasks()))
        done += 1
        return 2 * item

    assert await in_parallel(items(), work, 7) == list(range(0, 200, 2))
    assert max(tasks) <= 8 and await in_parallel([], work, 7) == []


async def test_the_first_that_fails_ends_all() -> None:
    async def work(item: int) -> None:
        if item == 3:
            raise ValueError("three")
        await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as failed:
        await in_parallel(range(100), work, 5)
    assert [str(each) for each in failed.value.exceptions] == ["three"]
