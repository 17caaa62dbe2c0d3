from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from fake_mesh import MODEL, FakeMesh, says, tells_times

from services.api.messages import Span
from services.streamer.choice.timeline import LEAST, MOST, Timeline

KINDS = {"queue", "tokenize", "prefill", "propose", "verify", "stream"}


class Clock:
    def __init__(self) -> None:
        self.at = 50.0

    def __call__(self) -> float:
        return self.at


def span(what: str, begin: float, end: float, count: int = 0, step: int = 0) -> Span:
    return Span(what=what, begin=begin, end=end, tokens=count, step=step)


def facts(timeline: Timeline) -> list[tuple[Any, ...]]:
    return [(each["what"], each["from_ms"], each["to_ms"], each.get("tokens", 0)) for each in timeline.told()]


def test_what_the_target_says_is_put_between_what_we_know() -> None:
    clock = Clock()
    timeline = Timeline(50.0, now=clock)
    clock.at = 50.010
    timeline.waits()
    clock.at = 50.012
    timeline.sent()
    # It came 6 ms after what it tells of began at 2 ms: 4 ms are the way there and back.
    clock.at = 50.118
    timeline.came([span("queue", 0.0, 0.001), span("prefill", 0.001, 0.102, 7)])
    clock.at = 50.119
    timeline.shown(1)
    assert facts(timeline) == [
        ("queue", 10.0, 12.0, 0),
        ("queue", 14.0, 15.0, 0),
        ("prefill", 15.0, 116.0, 7),
        ("stream", 116.0, 119.0, 1),
    ]


def test_text_written_after_the_next_step_has_ended_is_counted_once() -> None:
    clock = Clock()
    timeline = Timeline(50.0, now=clock)
    timeline.sent()
    for step in (1, 2):
        clock.at = 50.0 + step * 0.01
        timeline.came([span("verify", (step - 1) * 0.01, step * 0.01, 1, step)])
    for step in (3, 4):
        timeline.came([span("verify", (step - 1) * 0.01, step * 0.01, 1, step)])
        clock.at = 50.05 + step * 0.01
        timeline.shown(1)
    assert [each for each in facts(timeline) if each[0] == "stream"] == [
        ("stream", 30.0, 80.0, 1),
        ("stream", 80.0, 90.0, 1),
    ]


@pytest.mark.parametrize("seed", range(50))
def test_spans_of_one_process_keep_their_lengths_and_nothing_ends_after_it_was_told(seed: int) -> None:
    """Whatever the clocks differ by, and however long messages are under way."""
    chance = random.Random(seed)
    clock = Clock()
    timeline = Timeline(clock.at, now=clock)
    offset = chance.uniform(-1e4, 1e4)
    timeline.sent()
    sent = clock.at
    arrived = sent + chance.uniform(0, 0.01)
    theirs, came, lengths, last = arrived + offset, [], [], arrived
    for step in range(1, 40):
        begin = theirs - offset - arrived
        length = chance.uniform(0.0001, 0.02)
        theirs += length
        lengths.append(length)
        last = max(last, theirs - offset + chance.uniform(0, 0.005))
        clock.at = last
        came.append(last)
        timeline.came([span("verify", begin, begin + length, 1, step)])
        timeline.shown(1)
    told = [each for each in timeline.told() if each["what"] == "verify"]
    assert [each["to_ms"] - each["from_ms"] for each in told] == pytest.approx([1e3 * x for x in lengths], abs=0.003)
    assert all(before["to_ms"] <= after["from_ms"] + 0.002 for before, after in pairwise(told))
    assert all(each["from_ms"] >= 0 for each in told)
    assert all(each["to_ms"] <= (at - sent) * 1e3 + 0.002 for each, at in zip(told, came, strict=True))


@pytest.mark.parametrize("share", [1, 3, 100])
def test_a_long_answer_is_told_in_runs_that_hold_all_its_tokens(share: int) -> None:
    clock = Clock()
    timeline = Timeline(50.0, share=share, now=clock)
    timeline.sent()
    for step in range(1, 5001):
        clock.at += 0.01
        timeline.came([span("verify", step * 0.01, step * 0.01 + 0.01, 2, step)])
        timeline.shown(2)
    told = timeline.told()
    verified = [each for each in told if each["what"] == "verify"]
    most = max(LEAST, MOST // share)
    assert most / 2 <= len(verified) <= most
    assert sum(each["tokens"] for each in verified) == 10000
    assert sum(each.get("spans", 1) for each in verified) == 5000
    sizes = {each.get("spans", 1) for each in verified[:-1]}
    assert len(sizes) == 1
    assert all(before["to_ms"] == after["from_ms"] for before, after in pairwise(verified))
    assert len(told) <= 2 * most


def test_an_attempt_whose_target_was_lost_is_told_too() -> None:
    clock = Clock()
    timeline = Timeline(50.0, now=clock)
    timeline.sent()
    clock.at = 50.1
    timeline.came([span("verify", 0.0, 0.1, 1, 1)])
    clock.at = 51.0
    timeline.waits()
    clock.at = 51.5
    timeline.sent()
    clock.at = 51.7
    timeline.came([span("verify", 0.0, 0.2, 1, 1)])
    assert facts(timeline) == [
        ("verify", 0.0, 100.0, 1), ("queue", 1000.0, 1500.0, 0), ("verify", 1500.0, 1700.0, 1),
    ]  # fmt: skip


def test_names_a_target_invents_are_not_told() -> None:
    timeline = Timeline(50.0, now=Clock())
    timeline.sent()
    timeline.came([span("<script>", 0.0, 0.1)])
    assert timeline.told() == []


# Through the door --------------------------------------------------------------------------------------------------


async def ask(http: aiohttp.ClientSession, mesh: FakeMesh, path: str, **fields: Any) -> dict[str, Any]:
    """The body, or the last chunk."""
    said = {"prompt": "hi"} if path == "completions" else {"messages": [{"role": "user", "content": "hi"}]}
    async with http.post(f"{mesh.url}/v1/{path}", json={"model": MODEL, **said, **fields}) as response:
        assert response.status == 200, await response.text()
        if not fields.get("stream"):
            return dict(await response.json())
        events = [line[6:] for line in (await response.text()).splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        return dict(json.loads(events[-2]))


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("how", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}])
async def test_the_last_word_has_the_timeline(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, how: dict[str, Any]
) -> None:
    await mesh.start_target(tells_times)
    await mesh.start_door()
    last = await ask(http, mesh, path, return_timeline=True, **how)
    timeline = last["metrics"]["timeline"]
    assert {each["what"] for each in timeline} == KINDS - {"propose"}
    assert [each["from_ms"] for each in timeline] == sorted(each["from_ms"] for each in timeline)
    assert all(0 <= each["from_ms"] <= each["to_ms"] for each in timeline)
    order = [each["what"] for each in timeline if each["what"] in ("tokenize", "prefill")]
    assert order == ["tokenize", "prefill"]
    assert ("usage" in last) == (not how.get("stream") or "stream_options" in how)
    assert "speculative_decoding" in last["metrics"]


async def test_an_answer_that_a_stop_string_ends_has_one_too(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(tells_times)
    await mesh.start_door()
    last = await ask(http, mesh, "completions", return_timeline=True, stop="b")
    assert "verify" in {each["what"] for each in last["metrics"]["timeline"]}


async def test_of_several_answers_each_span_says_whose_it_is(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(tells_times)
    await mesh.start_door()
    timeline = (await ask(http, mesh, "completions", return_timeline=True, n=2))["metrics"]["timeline"]
    assert {each["choice"] for each in timeline if each["what"] == "prefill"} == {0, 1}
    assert len([each for each in timeline if each["what"] == "tokenize"]) == 1


async def test_who_does_not_ask_gets_none_and_no_target_hears_of_it(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    last = await ask(http, mesh, "completions")
    assert "timeline" not in last["metrics"]
    assert not target.asked[0].timeline
    await ask(http, mesh, "completions", return_timeline=True)
    assert target.asked[1].timeline
