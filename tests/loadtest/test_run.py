"""Runs against the scripted server: sessions, sides in turn, points, traces."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from scripted_server import DONE, ScriptedServer, chunk, usage

from loadtest.flags import parser, plan_of
from loadtest.plan import LoadPlan
from loadtest.run import LoadResult, Progress, run
from loadtest.workloads import agent


def plan(server: ScriptedServer, *flags: str) -> LoadPlan:
    return plan_of(parser().parse_args([server.url, "--max-tokens=2", "--warmup=0", *flags]))


async def load(server: ScriptedServer, *flags: str) -> LoadResult:
    return await run(plan(server, *flags))


def text_of(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


async def test_what_the_server_answered_is_part_of_the_next_turn(server: ScriptedServer, tmp_path: Path) -> None:
    async def numbered(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        for piece in (chunk(f"answer {len(server.asked)}"), chunk(finish="stop"), usage(3), DONE):
            await out.write(piece)

    server.script = numbered
    (tmp_path / "talk.jsonl").write_text('{"turns": ["one", "two", "three"]}')
    result = await load(server, f"--workload={tmp_path / 'talk.jsonl'}", "--requests=1")
    said = [[message["content"] for message in body["messages"]] for body in server.asked]
    assert said[-1] == ["one", "answer 1", "two", "answer 2", "three"]
    assert [each.turn for _, each in result.records] == [0, 1, 2] and result.runs[0]["requests"]["ok"] == 3


async def test_a_recorded_session_is_sent_as_recorded_with_one_salt(server: ScriptedServer) -> None:
    result = await load(server, "--workload=agent", "--requests=2", "--cold")
    recorded = [body["messages"] for body in agent.requests(2 * agent.TURNS, 0)]
    assert [body["messages"] for body in server.asked] == recorded
    salts = [body["cache_salt"] for body in server.asked]
    assert salts == [salts[0]] * agent.TURNS + [salts[-1]] * agent.TURNS and salts[0] != salts[-1]
    assert [each.turn for _, each in result.records] == [*range(agent.TURNS)] * 2


async def test_a_cold_workload_gives_every_request_a_salt_of_its_own(server: ScriptedServer) -> None:
    await load(server, "--workload=edit", "--requests=3", "--warmup=1")
    await load(server, "--workload=edit", "--requests=3", "--ab", "speculation=off", "speculation=auto")
    salts = [body["cache_salt"] for body in server.asked]
    assert len(set(salts)) == len(salts) == 4 + 6


async def test_any_workload_is_cold_where_it_is_told_so(server: ScriptedServer) -> None:
    await load(server, "--workload=chat", "--requests=3", "--cold")
    await load(server, "--workload=chat", "--requests=3", "--cold", "--ab", "label=a;model=m", "label=b;model=m")
    salts = [body["cache_salt"] for body in server.asked]
    assert len(set(salts)) == len(salts) >= 3 + 6
    with pytest.raises(ValueError, match="one of them"):
        await load(server, "--workload=chat", "--cold", "--shared-cache")


async def test_a_cold_workload_is_warm_where_it_is_told_so(server: ScriptedServer) -> None:
    await load(server, "--workload=edit", "--requests=2", "--shared-cache")
    await load(server, "--workload=edit", "--requests=2", "--ab", "label=a;cache_salt=null", "label=b;cache_salt=mine")
    salts = [body.get("cache_salt") for body in server.asked]
    assert salts[:2] == [None, None] and sorted(salts[2:], key=str) == [None, None, "mine", "mine"]


async def test_a_pause_is_not_counted_as_latency(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "talk.jsonl").write_text('{"turns": ["one", "two"], "think": 0.05}')
    result = await load(server, f"--workload={tmp_path / 'talk.jsonl'}", "--requests=1")
    (_, first), (_, second) = result.records
    assert second.scheduled == pytest.approx(first.ended + 0.05, abs=1e-6)


async def test_a_session_whose_turn_failed_is_over(server: ScriptedServer, tmp_path: Path) -> None:
    async def broken(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        await out.write(chunk("a"))

    server.script = broken
    (tmp_path / "talk.jsonl").write_text('{"turns": ["one", "two"]}')
    result = await load(server, f"--workload={tmp_path / 'talk.jsonl'}", "--requests=1")
    assert len(server.asked) == 1 and result.runs[0]["errors"] == {"truncated": 1}


async def test_sides_are_asked_the_same_in_turn_and_who_begins_changes(server: ScriptedServer) -> None:
    result = await load(server, "--requests=3", "--ab", "speculation=off", "speculation=auto")
    methods = [body["speculation"]["method"] for body in server.asked]
    assert methods == ["off", "auto", "auto", "off", "off", "auto"]
    texts = [text_of(body) for body in server.asked]
    assert texts[::2] == texts[1::2] and len(set(texts)) == 3
    assert [run["side"] for run in result.runs] == ["speculation=off", "speculation=auto"]
    (compared,) = result.comparisons
    assert compared["pairs"] == 3 and compared["texts"]["same"] == 3


async def test_several_at_a_time_take_turns_in_blocks(server: ScriptedServer) -> None:
    result = await load(server, "--requests=10", "--concurrency=2", "--ab", "speculation=off", "speculation=auto")
    methods = [body["speculation"]["method"] for body in server.asked]
    assert methods == ["off"] * 4 + ["auto"] * 8 + ["off"] * 4 + ["off"] * 2 + ["auto"] * 2
    assert server.most_at_once <= 2 and result.comparisons[0]["throughput"]["n"] == 3


async def test_before_a_turn_the_other_side_may_come_to_rest(server: ScriptedServer) -> None:
    result = await load(server, "--requests=2", "--ab-pause=0.05", "--ab", "speculation=off", "speculation=auto")
    asked = sorted((outcome for _, outcome in result.records), key=lambda outcome: outcome.scheduled)
    # The loop's timers may fire up to 1 ms early.
    assert all(after.scheduled - before.ended > 0.049 for before, after in pairwise(asked))


async def test_caches_of_sides_are_apart_and_new_in_every_run(server: ScriptedServer) -> None:
    flags = ("--requests=1", "--ab", "speculation=off", "speculation=auto")
    await load(server, *flags)
    await load(server, *flags)
    assert len({body["cache_salt"] for body in server.asked}) == 4
    server.asked.clear()
    await load(server, "--shared-cache", *flags)
    assert not any("cache_salt" in body for body in server.asked)


async def test_texts_that_differ_are_found(server: ScriptedServer) -> None:
    async def by_method(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        for piece in (chunk(body["model"]), chunk(finish="stop"), usage(1), DONE):
            await out.write(piece)

    server.script = by_method
    result = await load(server, "--requests=2", "--ab", "model=a", "model=b")
    assert result.comparisons[0]["texts"]["differ"] == 2
    assert [run["model"] for run in result.runs] == ["a", "b"]


async def test_another_server_may_be_a_side(server: ScriptedServer) -> None:
    other = ScriptedServer()
    await other.start()
    try:
        await load(server, "--requests=2", "--ab", f"url={server.url}", f"url={other.url}")
    finally:
        await other.stop()
    assert [text_of(body) for body in server.asked] == [text_of(body) for body in other.asked]
    assert len(server.asked) == 2


async def test_a_sweep_asks_something_new_at_every_point(server: ScriptedServer) -> None:
    result = await load(server, "--concurrency=1,3", "--requests=6")
    assert [run["load"]["concurrency"] for run in result.runs] == [1, 3]
    assert len({json.dumps(body["messages"]) for body in server.asked}) == 12
    rates = await load(server, "--rate=100,200", "--requests=3")
    assert [run["load"]["rate"] for run in rates.runs] == [100.0, 200.0]


async def test_a_trace_is_replayed_at_its_times(server: ScriptedServer, tmp_path: Path) -> None:
    lines = [{"prompt": name, "timestamp": at} for name, at in (("a", 10.0), ("b", 10.2), ("c", 10.4))]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    flags = (f"--workload={tmp_path / 'trace.jsonl'}", "--arrivals=trace", "--trace-speed=4")
    result = await load(server, *flags)
    starts = sorted(outcome.scheduled for _, outcome in result.records)
    assert [round(start - starts[0], 4) for start in starts] == [0.0, 0.05, 0.1]
    assert sorted(body["prompt"] for body in server.asked) == ["a", "b", "c"]


async def test_a_view_is_told_what_runs(server: ScriptedServer) -> None:
    seen: list[Progress] = []
    gate = asyncio.Event()

    async def held(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        await gate.wait()
        await server.whole_answer(request, body, out)

    def show(progress: Progress) -> None:
        seen.append(progress)
        if progress.loads[0].running == 2:
            gate.set()

    server.script = held
    await run(plan(server, "--requests=4", "--concurrency=2"), show, every=0.001)
    assert gate.is_set() and seen[0].points == 1


def test_without_an_end_there_is_enough_for_the_load() -> None:
    def requests(*flags: str) -> list[int]:
        return [each.requests for each in plan_of(parser().parse_args(flags)).at()]

    assert requests("--concurrency=1,32") == [16, 128]
    assert requests("--rate=1,10") == [16, 100]
    assert requests("--concurrency=16", "--ab", "seed=1", "seed=2") == [128]
    assert requests("--concurrency=16", "--duration=3") == [0] and requests("--requests=5") == [5]
