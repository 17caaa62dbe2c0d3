"""A proposer that is killed or stopped under sixteen streams of a real vLLM: what their readers notice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
from vllm_here import PROMPTS, counted, engine, needs_vllm

from bench.oracles import vllm_drafter
from bench.running_mesh import descendants

STREAMS, TOKENS = 16, 192
# Chunks of all streams together before something happens; and how long a stopped proposer stays so, in seconds.
BEFORE, STOPPED_S = 4 * STREAMS, 2.0
# Longest gap between two chunks because of it, in seconds.
GAP_S = 0.2


@dataclass
class Round:
    """`longest` gap between two chunks of a stream, since something happened."""

    failed: int = 0
    chunks: int = 0
    happened: float = 0.0
    times: list[list[float]] = field(default_factory=list)
    accepted: float = 0.0

    @property
    def longest(self) -> float:
        pairs = (pair for times in self.times for pair in pairwise(times))
        return max(later - sooner for sooner, later in pairs if later > self.happened)


async def streamed(http: aiohttp.ClientSession, url: str, number: int, found: Round, fault: asyncio.Event) -> None:
    body = {
        "model": "m", "messages": [{"role": "user", "content": f"{PROMPTS[number % 3]}\n# {number}"}],
        "max_tokens": TOKENS, "temperature": 0, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    times: list[float] = []
    found.times.append(times)
    ended = False
    async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                times.append(time.monotonic())
                found.chunks += 1
                if found.chunks == BEFORE:
                    fault.set()
            ended = ended or line.startswith(b"data: [DONE]")
    found.failed += not ended


async def a_round(url: str, happens: Callable[[], None], ends: Callable[[], None]) -> Round:
    """Sixteen streams; `happens` in their middle, and `ends` some time later."""
    found, fault, before = Round(), asyncio.Event(), counted(url, "accepted")

    async def act() -> None:
        await fault.wait()
        found.happened = time.monotonic()
        happens()
        await asyncio.sleep(STOPPED_S)
        ends()

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
        acting = asyncio.create_task(act())
        await asyncio.gather(*(streamed(http, url, number, found, fault) for number in range(STREAMS)))
        assert fault.is_set()
        await acting
    found.accepted = counted(url, "accepted") - before
    return found


def signalled(proposer: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """The process that drafts."""
    [worker] = descendants(proposer.pid)
    os.kill(worker, number)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """vLLM's URL, its proposer, and their folder."""
    folder = tmp_path_factory.mktemp("faults")
    vllm_drafter.make_path(folder)
    with vllm_drafter.proposer("cold", folder) as proposer, engine("cold", folder) as url:
        yield url, proposer, folder


@pytest.mark.slow
@needs_vllm
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_no_request_fails_no_stream_waits_long_and_drafts_come_back(
    both: tuple[str, subprocess.Popen[bytes], Path], fault: signal.Signals, record_property: Callable[..., None]
) -> None:
    url, proposer, folder = both

    def nothing() -> None:
        pass

    def ends() -> None:
        if fault is signal.SIGSTOP:
            signalled(proposer, signal.SIGCONT)

    rounds = [asyncio.run(a_round(url, nothing, nothing)) for _ in range(2)]
    plain = rounds[-1]
    hit = asyncio.run(a_round(url, lambda: signalled(proposer, fault), ends))
    # It starts again, or finds its way through what was asked meanwhile.
    until = time.monotonic() + 60
    while (after := asyncio.run(a_round(url, nothing, nothing))).accepted < plain.accepted / 2:
        assert time.monotonic() < until
    figures = {name: (round(each.longest, 3), int(each.accepted)) for name, each in
               (("plain", plain), ("hit", hit), ("after", after))}  # fmt: skip
    record_property("longest gap in s, accepted tokens", figures)
    print(fault.name, figures)
    assert [each.failed for each in (*rounds, hit, after)] == [0] * 4
    assert hit.longest - max(plain.longest, after.longest) <= GAP_S, figures
    log = (folder / "cold.log").read_text()
    assert "drafts no more" not in log and "taken for other texts" not in log
