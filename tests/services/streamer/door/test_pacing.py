"""Paced streams: what leaves is the same bytes in the same order, in frames that are all alike."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import aiohttp
import openai
import orjson
import pytest
from fake_mesh import MODEL, FakeMesh, FakeTarget, failed, floods, hangs_after, says, tokens, until
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory_wire import Answers, Wire, chat
from raw_sockets import BODY, QUICK, connect, head
from sse_reading import text_of

from mesh.stream import StreamWriter
from services.api.messages import Generate
from services.streamer.agents.reader import Said, SaidCall
from services.streamer.door.pacing import LARGEST, LATE, SMALLEST, Backlog, frame_size, padding, size_class
from services.streamer.door.sse import DONE, ChunkForm, event
from services.streamer.messages.events import Blocks

PACE = 0.05
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": 'a "text":" model'}
FRAMING = 7  # bytes: the length of a chunk in three digits, two line ends


def told(body: bytes) -> list[Any]:
    """The events, as a reader has them that knows comments."""
    lines = [line for line in body.split(b"\n") if line.startswith(b"data: ")]
    return ["[DONE]" if line == b"data: [DONE]" else orjson.loads(line[6:]) for line in lines]


def frames(wire: Wire) -> list[tuple[float, int]]:
    """Without the headers before them and the end of the body behind."""
    return wire.writes[1:-1]


# The frames, as values


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 100, 65536])
def test_padding_has_any_length_and_is_nothing_to_a_reader(length: int) -> None:
    filled = padding(length)
    assert len(filled) == length
    assert all(line == b"" or line.startswith(b":") for line in filled.split(b"\n"))


TEXTS = st.lists(st.tuples(st.integers(0, 2), st.text(max_size=30), st.booleans()), max_size=30)


@given(TEXTS, st.sampled_from([16, 64, 512]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_whatever_is_written_arrives_in_frames_of_one_size(
    texts: list[tuple[int, str, bool]], size: int, chat_form: bool
) -> None:
    forms = [ChunkForm(HEAD, index, chat=chat_form, usage_asked=False) for index in range(3)]
    backlog = Backlog(size)
    sent = b""
    for index, text, a_tick in texts:
        backlog.add(forms[index].text(text))
        if a_tick:
            frame = backlog.frame()
            assert len(frame) == backlog.size
            sent += frame
    backlog.add(forms[0].finish("stop", {}) + DONE)
    while backlog.waiting:
        sent += backlog.frame()
    read = told(sent)
    assert read[-1] == "[DONE]"
    for index in range(3):
        assert text_of(read, index) == "".join(text for each, text, _ in texts if each == index)


def test_text_of_one_choice_that_waits_becomes_one_event() -> None:
    forms = [ChunkForm(HEAD, index, chat=True, usage_asked=True) for index in range(2)]
    backlog = Backlog(SMALLEST * 2)
    backlog.add(forms[0].text('a"\\') + forms[1].text("other"))
    backlog.add(forms[0].text('"},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'))
    backlog.add(forms[1].finish("stop", {}) + forms[0].text("after"))
    read = told(backlog.frame())
    assert len(read) == 4
    assert text_of(read, 0) == 'a"\\"},"logprobs":null,"finish_reason":null}],"usage":null}\n\nafter'
    assert text_of(read, 1) == "other"


def test_text_of_a_message_that_waits_becomes_one_event_of_its_block() -> None:
    blocks = Blocks()
    backlog = Backlog(SMALLEST * 4)
    backlog.add(blocks.text('a"\\') + blocks.text('"}}\n\n') + blocks.text("b"))
    backlog.add(blocks.said(Said(calls=[SaidCall(0, "c", "f", "{}")])) + blocks.text("c") + blocks.text("d"))
    deltas = [each["delta"] for each in told(backlog.frame()) if "delta" in each]
    assert deltas == [
        {"type": "text_delta", "text": 'a"\\"}}\n\nb'},
        {"type": "input_json_delta", "partial_json": "{}"},
        {"type": "text_delta", "text": "cd"},
    ]


def test_an_event_that_is_too_long_leaves_in_parts_and_nothing_comes_between() -> None:
    long, short = event({"x": "y" * 1000}), event({"z": 1})
    backlog = Backlog(SMALLEST)
    backlog.add(long + short)
    sent = [backlog.frame() for _ in range(3)]
    assert [len(each) for each in sent] == [SMALLEST] * 3
    assert backlog.waiting == 0
    assert told(b"".join(sent)) == [{"x": "y" * 1000}, {"z": 1}]


def test_the_class_grows_only_when_text_would_be_late_and_stays_grown() -> None:
    backlog = Backlog(SMALLEST)
    backlog.add(event({"x": "y" * (LATE * SMALLEST - 100)}))
    assert len(backlog.frame()) == SMALLEST
    backlog.add(event({"x": "y" * (2 * SMALLEST)}))
    assert len(backlog.frame()) == 2 * SMALLEST
    while backlog.waiting:
        backlog.frame()
    assert len(backlog.frame()) == 2 * SMALLEST


def test_the_class_is_chosen_from_what_is_asked() -> None:
    assert frame_size(chat(), PACE) == SMALLEST
    assert frame_size(chat(n=4), PACE) > frame_size(chat(n=2), PACE) > SMALLEST
    assert frame_size(chat(logprobs=True, top_logprobs=5), PACE) > frame_size(chat(logprobs=True), PACE) > SMALLEST
    assert frame_size(chat(return_token_ids=True), 1.0) > frame_size(chat(), 1.0) > frame_size(chat(), 0.1)
    assert frame_size(chat(n=8, logprobs=True, top_logprobs=20), 10.0) == LARGEST
    assert [size_class(each) for each in (1, 512, 513, 1025)] == [512, 512, 1024, 2048]


# The stream, under a clock moved by hand


async def test_one_frame_a_tick_from_the_first_token_to_the_end() -> None:
    answers = Answers(pace=PACE)
    bursts = [(0.3, 0, "a"), (0.0, 0, "bcdef"), (0.01, 0, "g"), (1.0, 0, "h" * 100), (0.001, 0, "i"), (0.2, 0, "j")]
    wire = answers.play(bursts)
    await answers.until_done(wire)
    times, sizes = zip(*frames(wire), strict=True)
    assert set(sizes) == {SMALLEST + FRAMING}
    assert times[0] == pytest.approx(1000.3)  # the first token waits for nothing
    assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx([PACE] * (len(times) - 1))
    assert text_of(told(wire.body)) == "abcdefg" + "h" * 100 + "ij"
    assert told(wire.body)[-1] == "[DONE]"
    # The end of the body comes with the last frame.
    assert wire.writes[-1][0] == times[-1]


async def test_text_leaves_with_the_next_tick() -> None:
    answers = Answers(pace=PACE)
    wire = answers.play([(0.0, 0, "a"), (0.32, 0, "b"), (5.0, 0, "c")])
    await answers.clock.advance(0.34)
    assert text_of(told(wire.body)) == "a"
    await answers.clock.advance(0.02)
    assert text_of(told(wire.body)) == "ab"
    await answers.until_done(wire)


async def test_a_late_tick_moves_no_other_and_missed_ones_are_not_made_up_for() -> None:
    answers = Answers(pace=PACE)
    wire = answers.play([(0.0, 0, "a"), (3600.0, 0, "b")])
    await answers.clock.advance(PACE / 4)
    written = len(wire.writes)
    answers.clock.stall(10.5 * PACE)
    await answers.clock.advance(0.0)
    assert len(wire.writes) == written + 1
    await answers.clock.advance(PACE / 2)
    assert len(wire.writes) == written + 2 and wire.writes[-1][0] == pytest.approx(1000.0 + 11 * PACE)
    wire.hang_up()
    await answers.clock.settle()


async def test_all_choices_share_the_ticks_and_the_end_is_the_last_ones() -> None:
    answers = Answers(pace=PACE)
    asked = chat(n=3)
    wire = answers.play([(0.1, 2, "x"), (0.01, 0, "y"), (0.02, 2, "z"), (0.3, 1, "w")], asked)
    await answers.until_done(wire)
    assert {size for _, size in frames(wire)} == {frame_size(asked, PACE) + FRAMING}
    assert [text_of(told(wire.body), index) for index in range(3)] == ["y", "w", "xz"]
    assert len({time for time, _ in frames(wire)}) == len(frames(wire))


async def test_an_error_is_told_at_a_tick_in_a_frame_like_the_others() -> None:
    answers = Answers(pace=PACE)
    wire = answers.play([(0.0, 0, "a"), (0.12, 0, "b")], fails=True)
    await answers.until_done(wire)
    assert {size for _, size in frames(wire)} == {SMALLEST + FRAMING}
    read = told(wire.body)
    assert read[-1]["error"]["code"] == "engine" and "[DONE]" not in read
    assert text_of(read) == "ab"
    assert frames(wire)[-1][0] == pytest.approx(1000.15)


async def test_a_client_that_leaves_ends_the_ticks() -> None:
    answers = Answers(pace=PACE)
    wire = answers.play([(0.0, 0, "a"), (3600.0, 0, "b")])
    await answers.clock.advance(0.2)
    wire.hang_up()
    await answers.clock.settle()
    written = len(wire.writes)
    await answers.clock.advance(10.0)
    assert len(wire.writes) == written
    assert answers.streams[0]._timer is None  # type: ignore[attr-defined]


async def test_nothing_piles_up_for_a_client_that_does_not_read() -> None:
    answers = Answers(pace=PACE)
    wire = answers.play([(0.0, 0, "a")] + [(0.001, 0, "x" * 1000)] * 1000)
    await answers.clock.advance(0.01)
    assert wire.protocol is not None
    wire.protocol.pause_writing()
    written = len(wire.writes)
    await answers.clock.advance(100.0)
    assert len(wire.writes) == written
    backlog = answers.streams[0]._backlog  # type: ignore[attr-defined]
    assert backlog.waiting < LARGEST + 2000  # the answer waits, which slows the target down
    wire.protocol.resume_writing()
    await answers.until_done(wire)
    assert len(text_of(told(wire.body))) == 1_000_001


@pytest.mark.parametrize("seed", range(5))
async def test_random_answers_arrive_whole(seed: int) -> None:
    draw = random.Random(seed)
    answers = Answers(pace=PACE)
    arrivals = [
        (draw.choice([0.0, 0.004, 0.03, 0.4]), draw.randrange(2), "ä\n\"'\\"[: draw.randrange(6)] * draw.randrange(40))
        for _ in range(200)
    ]
    wire = answers.play(arrivals, chat(n=2))
    await answers.until_done(wire)
    for index in range(2):
        assert text_of(told(wire.body), index) == "".join(text for _, each, text in arrivals if each == index)
    gaps = {round((later - earlier) / PACE, 6) for (earlier, _), (later, _) in pairwise(frames(wire))}
    assert gaps == {1.0}


# Over sockets, with the whole door


async def ask(http: aiohttp.ClientSession, mesh: FakeMesh, **more: Any) -> bytes:
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 100, "stream": True, **more}
    async with http.post(f"{mesh.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Cache-Control"] == "no-cache, no-transform"
        return await response.read()


async def test_the_setting_paces_streams_and_nothing_else(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("the quick fox says hello", group=3))
    await mesh.start_door(pace_ms=2.0)
    received = await ask(http, mesh, n=2, stream_options={"include_usage": True}, logprobs=2, return_token_ids=True)
    read = told(received)
    assert [text_of(read, index) for index in range(2)] == ["the quick fox says hello"] * 2
    assert read[-2]["usage"]["completion_tokens"] > 0 and read[-1] == "[DONE]"
    sizes = len(received)
    assert sizes % 1024 == 0
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 100}
    async with http.post(f"{mesh.url}/v1/completions", json=body) as response:
        whole = await response.read()
    assert orjson.loads(whole)["choices"][0]["text"] == "the quick fox says hello"
    assert int(response.headers["Content-Length"]) == len(whole)


async def test_a_target_that_fails_ends_a_paced_stream_with_an_error(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def fails(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await out.send(tokens(message, 0, [97]))
        await out.send(failed(message, "engine"))

    await mesh.start_target(fails)
    door = await mesh.start_door(pace_ms=2.0)
    read = told(await ask(http, mesh))
    assert text_of(read[:-1]) == "a"
    assert read[-1]["error"]["code"] == "engine"
    assert door.load() == 0


async def test_a_paced_client_that_does_not_read_is_cut_as_any_other(mesh: FakeMesh) -> None:
    target = await mesh.start_target(floods)
    door = await mesh.start_door(pace_ms=1.0, **QUICK)
    _, writer = await connect(mesh, limit=1024)
    body = orjson.dumps({**orjson.loads(BODY), "max_tokens": 200, "stream": True})
    writer.write(head(len(body)) + body)
    await asyncio.wait_for(target.was_cancelled.wait(), 20)
    await until(lambda: door.load() == 0)
    writer.close()


async def test_a_drain_ends_a_paced_stream_with_a_reason(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(hangs_after("a"))
    door = await mesh.start_door(pace_ms=2.0)
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 100, "stream": True}
    async with http.post(f"{mesh.url}/v1/completions", json=body) as response:
        first = await response.content.read(SMALLEST)  # it has begun
        await door.drain(0.0)
        read = told(first + await response.read())
    assert text_of(read[:-1]) == "a"
    assert read[-1]["error"]["code"] == "draining"
    assert door.load() == 0


async def test_the_openai_package_reads_a_paced_stream(mesh: FakeMesh) -> None:
    await mesh.start_target(says("hello the fox"))
    await mesh.start_door(pace_ms=1.0)
    async with openai.AsyncOpenAI(
        base_url=mesh.url + "/v1", api_key="any", max_retries=0, _strict_response_validation=True
    ) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "hello the fox"
    assert chunks[-1].usage is not None
