from __future__ import annotations

import asyncio
import logging

import pytest
from fake_mesh import FakeMesh, says, until

from services.api.messages import Seen
from services.runtime.introspection import INTROSPECTION, Figures, Introspection
from services.runtime.log import FIELDS
from services.streamer.extras import throughput
from services.streamer.extras.throughput import summary

FIRST = ("worker-1", 1)


def seen(tokens: float, prompts: float = 0, steps: float = 0, drafted: float = 0, accepted: float = 0) -> Seen:
    totals = {"tokens": tokens, "prompt_tokens": prompts, "steps": steps, "drafted": drafted, "accepted": accepted}
    return Seen(totals=totals, figures={"running": 2, "waiting": 1, "kv_used": 0.25})


def test_a_line_has_what_was_computed_since_the_last_one() -> None:
    line = summary({FIRST: seen(100, 10, 50, 80, 40)}, {FIRST: seen(300, 60, 150, 180, 115)}, 10.0)
    assert line == {
        "prompt_tokens_per_s": 5.0, "tokens_per_s": 20.0, "running": 2, "waiting": 1, "kv_used": 0.25,
        "drafted_per_s": 10.0, "acceptance_rate": 0.75, "accepted_per_step": 0.75,
    }  # fmt: skip


def test_without_traffic_there_is_no_line() -> None:
    assert summary({FIRST: seen(100, 10)}, {FIRST: seen(100, 10)}, 10.0) is None
    assert summary({}, {}, 10.0) is None


def test_without_drafts_nothing_is_said_of_them() -> None:
    line = summary({FIRST: seen(100)}, {FIRST: seen(150, steps=50)}, 10.0)
    assert line is not None and "acceptance_rate" not in line


def test_a_restarted_worker_counts_from_its_second_answer() -> None:
    again = ("worker-1", 2)
    assert summary({FIRST: seen(1000)}, {again: seen(20)}, 10.0) is None
    line = summary({again: seen(20)}, {again: seen(40)}, 10.0)
    assert line is not None and line["tokens_per_s"] == 2.0


async def test_the_streamer_logs_it_while_workers_work(
    mesh: FakeMesh, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "specmesh.throughput")
    await mesh.start_target(says("hello"))
    totals = {"tokens": 5.0}
    await mesh.nodes["worker-1"].spawn(Introspection(lambda: Figures({"running": 1}, dict(totals))), INTROSPECTION)
    door = await mesh.start_door()
    assert door._map is not None
    watching = asyncio.create_task(throughput.watch(door._map, every=0.05))
    try:
        await until(lambda: door._map is not None and bool(door._map._view))
        totals["tokens"] = 500.0
        await until(lambda: bool(caplog.records))
    finally:
        watching.cancel()
    line = getattr(caplog.records[0], FIELDS)
    assert line["running"] == 1 and line["tokens_per_s"] > 0
