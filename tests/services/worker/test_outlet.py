"""Messages of one request leave in order, at once while there is credit and together when there was none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mesh.errors import PeerLost
from services.api.messages import Failed, Run, TokenLogprob, Tokens
from services.api.prompt_logprobs import PromptLogprob, pack
from services.worker.outlet import Outlet

END = Failed(request_id="r", attempt=1, reason="engine", message="x")


class Writer:
    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.written: list[Any] = []
        self.more = asyncio.Event()
        self.error: PeerLost | None = None

    def offer(self, item: Any) -> bool:
        if self.error is not None:
            raise self.error
        if self.credit <= 0:
            return False
        self.credit -= 1
        self.written.append(item)
        return True

    async def send(self, item: Any) -> None:
        while not self.offer(item):
            self.more.clear()
            await self.more.wait()

    def give(self, credit: int) -> None:
        self.credit += credit
        self.more.set()


def tokens(seq: int, *ids: int) -> Tokens:
    run = Run(length=len(ids), drafted=0, accepted=0)
    logprobs = [TokenLogprob(logprob=-float(i)) for i in ids]
    return Tokens(request_id="r", attempt=1, seq=seq, ids=list(ids), runs=[run], logprobs=logprobs)


async def test_with_credit_messages_are_sent_at_once() -> None:
    writer = Writer(10)
    outlet = Outlet(writer)
    for message in (tokens(0, 1), tokens(1, 2), END):
        outlet.push(message)
    await outlet.run()
    assert writer.written == [tokens(0, 1), tokens(1, 2), END]


async def test_without_credit_tokens_wait_and_leave_as_one_before_the_end() -> None:
    writer = Writer(1)
    outlet = Outlet(writer)
    running = asyncio.create_task(outlet.run())
    outlet.push(tokens(0, 1))
    outlet.push(tokens(1, 2, 3))
    outlet.push(tokens(3, 4))
    await asyncio.sleep(0)
    outlet.push(END)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not running.done()
    writer.give(9)
    await running
    first, second, end = writer.written
    assert (first.ids, second.seq, second.ids, end) == ([1], 1, [2, 3, 4], END)
    assert [run.length for run in second.runs] == [2, 1]
    assert [value.logprob for value in second.logprobs] == [-2.0, -3.0, -4.0]


async def test_log_probabilities_of_a_prompt_are_sent_in_the_messages_they_came_in() -> None:
    """Those of a long prompt are too large for one."""
    told = [
        Tokens(request_id="r", attempt=1, seq=0, ids=[], prompt_logprobs=pack(begin, [PromptLogprob(logprob=-1.0)]))
        for begin in (1, 2)
    ]
    writer = Writer(0)
    outlet = Outlet(writer)
    for message in (*told, tokens(0, 1), tokens(1, 2), END):
        outlet.push(message)
    writer.give(9)
    await outlet.run()
    assert writer.written[:2] == told and writer.written[3] == END
    assert (writer.written[2].ids, len(writer.written)) == ([1, 2], 4)


async def test_nothing_overtakes_what_is_being_sent() -> None:
    writer = Writer(0)
    outlet = Outlet(writer)
    running = asyncio.create_task(outlet.run())
    outlet.push(tokens(0, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writer.credit = 5
    # The first is on its way out, and there is credit: the second has to queue all the same.
    outlet.push(tokens(1, 2))
    writer.give(0)
    outlet.push(END)
    await running
    assert [getattr(message, "ids", END) for message in writer.written] == [[1], [2], END]


async def test_nothing_overtakes_what_waits_when_credit_comes() -> None:
    writer = Writer(0)
    outlet = Outlet(writer)
    outlet.push(tokens(0, 1))
    writer.credit = 5
    for message in (tokens(1, 2), END):
        outlet.push(message)
    await outlet.run()
    assert [getattr(message, "ids", END) for message in writer.written] == [[1, 2], END]


async def test_a_lost_stream_ends_the_wait() -> None:
    writer = Writer(5)
    outlet = Outlet(writer)
    writer.error = PeerLost("gone")
    outlet.push(tokens(0, 1))
    with pytest.raises(PeerLost):
        await outlet.run()
    assert not outlet.ended
