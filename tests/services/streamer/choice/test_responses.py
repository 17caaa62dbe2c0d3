"""What an answer tells of its drafts, whole and streamed, and that it says nothing nobody asked for."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
import pytest
from fake_mesh import CARD, MODEL, FakeMesh, FakeTarget, finished, ids_of, says, tokens
from sse_reading import streamed

from mesh.stream import StreamWriter
from services.api.messages import Generate, Run, Speculation, Tokens

TEXT = "abcdefgh"  # as many tokens
PATHS = ("/v1/chat/completions", "/v1/completions")
WAYS = pytest.mark.parametrize(("path", "stream"), [(path, stream) for path in PATHS for stream in (False, True)])


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    return {"model": MODEL, "max_tokens": 50, **asked, **fields}


async def answers(http: aiohttp.ClientSession, mesh: FakeMesh, path: str, stream: bool, **fields: Any) -> list[Any]:
    """The bodies: one, or the chunks of a stream with its usage."""
    if stream:
        asked = body_for(path, stream_options={"include_usage": True}, **fields)
        chunks = await streamed(http, mesh.url + path, asked)
        assert chunks.pop() == "[DONE]"
        return chunks
    async with http.post(mesh.url + path, json=body_for(path, **fields)) as response:
        assert response.status == 200, await response.text()
        return [await response.json()]


async def steps(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
    """Three steps: one without a draft, one that is half right, one that is right."""
    ids = ids_of(TEXT)
    first = len(ids) - 3
    await out.send(tokens(message, 0, ids[:1]))
    await out.send(tokens(message, 1, ids[1:first], drafted=2 * (first - 2), source="suffix"))
    await out.send(tokens(message, first, ids[first:], drafted=2, source="ngram"))
    await out.send(finished(message, len(ids)))


LENGTH = len(ids_of(TEXT))
HALF = LENGTH - 5  # tokens accepted by the second step


@WAYS
async def test_the_metrics_are_vllms(mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool) -> None:
    await mesh.start_target(steps)
    await mesh.start_door()
    told = (await answers(http, mesh, path, stream))[-1]["metrics"]["speculative_decoding"]
    longest = max(8, 2 * HALF)
    histogram = [0] * (longest + 1)
    histogram[HALF] += 1
    histogram[2] += 1
    assert told == {
        "mean_acceptance_length": 1 + (HALF + 2) / 2,
        "draft_acceptance_rate": (HALF + 2) / (2 * HALF + 2),
        "acceptance_histogram": histogram,
        "acceptance_histogram_by_draft_length": {
            "2": [0, 0, 1],
            str(2 * HALF): [int(place == HALF) for place in range(2 * HALF + 1)],
        },
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": HALF + 2,
        "num_draft_tokens": 2 * HALF + 2,
        "num_spec_tokens": longest,
        "verify_strategy": "target_match",
        "lossless": True,
    }


@WAYS
async def test_of_several_answers_the_one_that_found_least_says_how_much_was_cached(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    """The others found what it computed, which the request itself has paid for."""

    async def found(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await says("hi", cached=[7, 2, 5][len(target.asked) - 1])(target, message, out)

    await mesh.start_target(found)
    await mesh.start_door()
    body = (await answers(http, mesh, path, stream, n=3))[-1]
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


@WAYS
async def test_steps_are_told_when_asked_for(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    await mesh.start_target(steps)
    await mesh.start_door()
    body = (await answers(http, mesh, path, stream, return_speculation_steps=True))[-1]
    told = body["metrics"]["speculative_decoding"]
    assert (told["per_step_accepted"], told["per_step_drafted"]) == ([HALF, 2], [2 * HALF, 2])


@WAYS
async def test_of_an_answer_that_might_have_had_drafts_and_had_none_all_is_zero(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    async def none(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await out.send(tokens(message, 0, ids_of("h")))
        await out.send(finished(message, 1))

    await mesh.start_target(none)
    await mesh.start_door()
    told = (await answers(http, mesh, path, stream, speculation={"num_speculative_tokens": 2}))[-1]["metrics"]
    assert told["speculative_decoding"]["acceptance_histogram"] == [0, 0, 0]
    for wish in ({"off": True}, {"method": "off"}, {"method": "naive"}, {"num_speculative_tokens": 0}):
        assert "metrics" not in (await answers(http, mesh, path, stream, speculation=wish))[-1]


async def test_a_server_that_does_not_draft_says_nothing_of_drafts(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def none(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await out.send(tokens(message, 0, ids_of("h")))
        await out.send(finished(message, 1))

    target = await mesh.start_target(none)
    target.card = msgspec.structs.replace(CARD, speculation=Speculation(method="naive"))
    await mesh.start_door()
    assert "metrics" not in (await answers(http, mesh, PATHS[0], False))[0]


@WAYS
async def test_runs_are_told_with_the_tokens_they_gave(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    await mesh.start_target(steps)
    await mesh.start_door()
    bodies = await answers(http, mesh, path, stream, return_provenance=True, return_token_ids=True)
    choices = [body["choices"][0] for body in bodies if body["choices"]]
    for choice in choices:
        assert sum(run["tokens"] for run in choice.get("runs", [])) == len(choice.get("token_ids", []))
    assert [run for choice in choices for run in choice.get("runs", [])] == [
        {"source": "", "match_length": 0, "drafted": 0, "accepted": 0, "tokens": 1},
        {"source": "suffix", "match_length": 3, "drafted": 2 * HALF, "accepted": HALF, "tokens": HALF + 1},
        {"source": "ngram", "match_length": 3, "drafted": 2, "accepted": 2, "tokens": 3},
    ]


async def guessed_wrong(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
    """A character of four tokens, then a draft of six of which one stood, then one that stood whole."""
    first, second, third = ids_of("a🦊"), ids_of("bc"), ids_of("de")
    wrong = ids_of("x🦊")
    for seq, ids, run in (
        (0, first, Run(length=5, drafted=0, accepted=0)),
        (5, second, Run(length=2, drafted=6, accepted=1, source="suffix", match_length=3, rejected=wrong)),
        (7, third, Run(length=2, drafted=1, accepted=1, source="ngram", match_length=2)),
    ):
        await out.send(Tokens(request_id=message.request_id, attempt=message.attempt, seq=seq, ids=ids, runs=[run]))
    await out.send(finished(message, 9))


@WAYS
async def test_drafts_are_told_with_what_was_rejected_and_where_tokens_begin(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    target = await mesh.start_target(guessed_wrong)
    await mesh.start_door()
    bodies = await answers(http, mesh, path, stream, return_drafts=True)
    runs = [run for body in bodies for choice in body["choices"] for run in choice.get("runs", [])]
    # Every token of one character begins with it.
    assert [(run["step"], run["offsets"], run["rejected"]) for run in runs] == [
        (1, [0, 1, 1, 1, 1], []),
        (2, [2, 3], ["x", "", "", "", "🦊"]),
        (3, [4, 5], []),
    ]
    assert [(run["drafted"], run["accepted"], run["tokens"]) for run in runs] == [(0, 0, 5), (6, 1, 2), (1, 1, 2)]
    assert target.asked[0].speculation.return_drafts


@WAYS
async def test_runs_end_where_a_stop_string_ends_the_answer(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    await mesh.start_target(says("hello the stop fox", group=10))
    await mesh.start_door()
    bodies = await answers(http, mesh, path, stream, return_provenance=True, stop=["stop"])
    runs = [run for body in bodies for choice in body["choices"] for run in choice.get("runs", [])]
    assert runs == [{"source": "ngram", "match_length": 3, "drafted": 3, "accepted": 3, "tokens": 3}]


@WAYS
async def test_runs_of_tokens_that_were_held_back_add_up(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    await mesh.start_target(steps)
    await mesh.start_door()
    # The last token of the second step leaves with the third: it might have begun the stop string.
    bodies = await answers(http, mesh, path, stream, return_provenance=True, stop=["ef!"])
    runs = [run for body in bodies for choice in body["choices"] for run in choice.get("runs", [])]
    counts = [(run["source"], run["drafted"], run["accepted"], run["tokens"]) for run in runs]
    held = [("suffix", HALF, HALF, HALF), ("suffix", HALF, 0, 1)]
    second = held if stream else [("suffix", 2 * HALF, HALF, HALF + 1)]
    assert counts == [("", 0, 0, 1), *second, ("ngram", 2, 2, 3)]


@WAYS
async def test_fastdeploys_words_stand_with_the_finish_reason(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    await mesh.start_target(steps)
    await mesh.start_door()
    bodies = await answers(http, mesh, path, stream, return_speculate_metrics=True, n=2)
    ended = [choice for body in bodies for choice in body["choices"] if choice["finish_reason"]]
    assert len(ended) == 2
    for choice in ended:
        told = choice["speculate_metrics"]
        assert (told["accepted_tokens"], told["average_accept_length"]) == (LENGTH, LENGTH / 3)
        assert told["accepted_tokens_per_head"][:2] == [3, 2]
        assert len(told["accept_ratio_per_head"]) == len(told["accepted_tokens_per_head"]) - 1
    others = [choice for body in bodies for choice in body["choices"] if not choice["finish_reason"]]
    assert not any("speculate_metrics" in choice for choice in others)


@WAYS
async def test_nothing_is_told_that_nobody_asked_for(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    await mesh.start_target(steps)
    await mesh.start_door()
    for body in await answers(http, mesh, path, stream):
        assert not {"per_step_accepted", "per_step_drafted"} & set(
            body.get("metrics", {}).get("speculative_decoding", {})
        )
        assert "completion_tokens_details" not in (body.get("usage") or {})
        for choice in body["choices"]:
            assert not {"runs", "speculate_metrics", "token_ids"} & set(choice)


async def test_tokens_that_come_twice_are_counted_once(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def repeats(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        ids = ids_of(TEXT)
        for _ in range(3):
            await out.send(tokens(message, 0, ids[:3], drafted=2, source="prediction"))
        await out.send(tokens(message, 1, ids[1:], drafted=7, source="prediction"))
        await out.send(finished(message, len(ids)))

    await mesh.start_target(repeats)
    await mesh.start_door()
    (body,) = await answers(
        http, mesh, PATHS[1], False, prediction={"type": "content", "content": "x"}, return_provenance=True
    )
    told = body["metrics"]["speculative_decoding"]
    assert (told["num_spec_steps"], told["num_draft_tokens"], told["num_accepted_draft_tokens"]) == (2, 2 + 5, 2 + 4)
    assert body["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 2 + 4,
        "rejected_prediction_tokens": 1,
    }
    assert [run["tokens"] for run in body["choices"][0]["runs"]] == [3, LENGTH - 3]
