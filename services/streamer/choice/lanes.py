"""Does the same for many things, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from services.streamer.choice.turns import Turns
from services.streamer.openai.errors import ApiError

Given = TypeVar("Given")
Made = TypeVar("Made")
# Units of work (turns.py) to begin with one of them: a choice, or the encoding of a text.
TO_BEGIN = 100


async def in_lanes(
    act: Callable[[Given], Awaitable[Made]],
    things: Sequence[Given],
    lanes: int,
    turns: Turns,
    more: Callable[[Given], int] = lambda thing: 0,
) -> list[Made]:
    """What `act` makes of each, in their order; the first that fails cancels the others. `more`: units of work to begin
    with one, beyond TO_BEGIN."""
    if len(things) == 1:  # the common case needs no further task
        return [await act(things[0])]
    left = iter(enumerate(things))
    made: dict[int, Made] = {}

    async def lane() -> None:
        for index, thing in left:
            await turns.take(TO_BEGIN + more(thing))
            made[index] = await act(thing)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(lanes, len(things))):
                group.create_task(lane())
    except ExceptionGroup as errors:
        told = [each for each in errors.exceptions if isinstance(each, ApiError)]
        raise (told or errors.exceptions)[0] from None
    return [made[index] for index in range(len(things))]
