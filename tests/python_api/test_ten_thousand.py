"""Many prompts in one call: what is held of them at a time, and where memory goes."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.running_mesh import descendants, resident_mb
from specmesh import LLM, SamplingParams
from specmesh.llm import IN_FLIGHT

from .conftest import MOCK

PROMPTS, FIRST, EVERY = 10_000, 2_000, 1_000
# What a process may take more at its highest, for allocators and caches that aren't full at the first look.
SLACK_MB = 24


class Seen:
    """Looks at the processes, the sockets and the requests in flight, while prompts are taken."""

    def __init__(self, llm: LLM) -> None:
        assert llm._mesh is not None
        self._up = llm._mesh._process.pid
        self._loop = llm._connection._running()
        self.resident: list[dict[str, float]] = []
        self.sockets: list[int] = []
        self.tasks: list[int] = []

    def prompts(self) -> Iterator[list[int]]:
        for number in range(PROMPTS):
            if number >= FIRST and number % EVERY == 0:
                self.look()
            yield [100 + number % 32, 200 + number % 4096, 300 + number // 4096]
        self.look()

    def look(self) -> None:
        pids = {"caller": os.getpid(), "up": self._up} | {f"{pid}": pid for pid in descendants(self._up)}
        self.resident.append({name: resident_mb(pid) for name, pid in pids.items()})
        self.sockets.append(sum(_is_socket(fd) for fd in Path("/proc/self/fd").iterdir()))
        self.tasks.append(len(asyncio.all_tasks(self._loop)))

    def grown_mb(self, name: str) -> float:
        values = [each[name] for each in self.resident]
        return max(values) - values[0]


def _is_socket(fd: Path) -> bool:
    try:
        return os.readlink(fd).startswith("socket:")
    except OSError:
        return False


def held_mb(value: Any, seen: set[int]) -> float:
    """Of an object with all that it refers to."""
    if id(value) in seen or isinstance(value, type):
        return 0.0
    seen.add(id(value))
    return sys.getsizeof(value) / 2**20 + sum(held_mb(each, seen) for each in gc.get_referents(value))


@pytest.mark.slow
def test_memory_is_flat_but_for_the_results() -> None:
    with LLM(**MOCK) as llm:
        seen = Seen(llm)
        outputs = llm.generate(seen.prompts(), SamplingParams(max_tokens=4, ignore_eos=True))
        assert len(outputs) == PROMPTS and all(len(each.outputs[0].token_ids) == 4 for each in outputs)
        results_mb = held_mb(outputs, set()) * (PROMPTS - FIRST) / PROMPTS
    names = list(seen.resident[0])
    assert all(list(each) == names for each in seen.resident) and len(names) >= 6, "no process was started anew"
    grown = {name: seen.grown_mb(name) for name in names}
    print({name: round(each, 1) for name, each in grown.items()}, f"results {results_mb:.1f} MB")
    assert grown.pop("caller") < results_mb + SLACK_MB
    assert max(grown.values()) < SLACK_MB, grown
    # A request has a task of its own, and another while its connection is opened.
    assert max(seen.tasks) <= 2 * IN_FLIGHT and max(seen.sockets) <= IN_FLIGHT + 16, (seen.tasks, seen.sockets)
