"""Spans of a request: from its timeline, and of the door as a collector of OpenTelemetry gets them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from fake_mesh import MODEL, FakeMesh, failed, says, tells_times
from otlp_collector import OtlpCollector, facts, whole_of

from mesh.stream import StreamWriter
from services.api.messages import Generate
from services.runtime.log import FIELDS
from services.streamer.door.request_spans import Phase, phases_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def entry(what: str, begin: float, end: float, tokens: int = 0, spans: int = 1) -> dict[str, Any]:
    """As a timeline tells it."""
    return {"what": what, "from_ms": begin, "to_ms": end, "tokens": tokens, "spans": spans}


def test_what_follows_in_the_same_phase_is_one_and_drafts_run_beside_it() -> None:
    told = [
        entry("queue", 0, 1),
        entry("tokenize", 1, 3, 9),
        entry("queue", 3, 4),
        entry("queue", 4, 6),
        entry("prefill", 6, 20, 8),
        entry("prefill", 20, 30, 1),
        entry("propose", 25, 29, 4),
        entry("stream", 30, 31, 1),
        entry("verify", 30, 40, 3),
        entry("propose", 31, 35, 2),
        entry("stream", 40, 41, 3),
        entry("verify", 40, 60, 5, spans=2),
        entry("prefill", 60, 70, 20),  # it was preempted
        entry("verify", 70, 80, 1),
    ]
    assert phases_of(told) == [
        Phase("queue", "streamer", 0.0, 0.001, 0, 1),
        Phase("tokenize", "tokenizer", 0.001, 0.003, 9, 1),
        Phase("queue", "worker", 0.003, 0.006, 0, 2),
        Phase("prefill", "worker", 0.006, 0.03, 9, 2),
        Phase("propose", "proposer", 0.025, 0.035, 6, 2),
        Phase("stream", "streamer", 0.03, 0.041, 4, 2),
        Phase("decode", "worker", 0.03, 0.06, 8, 3),
        Phase("prefill", "worker", 0.06, 0.07, 20, 1),
        Phase("decode", "worker", 0.07, 0.08, 1, 1),
    ]


# Through the door --------------------------------------------------------------------------------------------------


@pytest.fixture
async def collector() -> AsyncIterator[OtlpCollector]:
    async with OtlpCollector() as collector:
        yield collector


async def ask(http: aiohttp.ClientSession, mesh: FakeMesh, headers: dict[str, str], **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": "hi", "seed": 3, **fields}
    async with http.post(f"{mesh.url}/v1/completions", json=body, headers=headers) as response:
        text = await response.text()
        return dict(await response.json()) if response.content_type == "application/json" else {"text": text}


async def spans_after(mesh: FakeMesh, collector: OtlpCollector) -> list[dict[str, Any]]:
    """A stop sends what is left."""
    await mesh.node.stop()
    return collector.spans


async def test_a_request_is_one_trace_whose_phases_join_and_nest(
    mesh: FakeMesh, http: aiohttp.ClientSession, collector: OtlpCollector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "specmesh.requests")
    await mesh.start_target(tells_times)
    await mesh.start_door(otlp_traces_endpoint=collector.url, otlp_service_name="chat")
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "X-Request-Id": "mine"}
    answer = await ask(http, mesh, headers, temperature=0)
    assert "timeline" not in answer.get("metrics", {})  # it was not asked for
    spans = await spans_after(mesh, collector)
    whole = whole_of(spans)
    assert (whole["traceId"], whole["parentSpanId"], whole["name"]) == (TRACE, SPAN, "POST /v1/completions")
    assert {span["name"] for span in spans} == {whole["name"], "queue", "tokenize", "prefill", "decode", "stream"}
    told = facts(whole)
    usage = answer["usage"]
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"] > 0
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert told["gen_ai.request.model"] == MODEL
    assert (told["gen_ai.request.id"], told["gen_ai.response.id"]) == ("mine", answer["id"])
    assert told["http.response.status_code"] == 200
    assert "status" not in whole
    assert 0 < told["gen_ai.latency.time_to_first_token"] < told["gen_ai.latency.e2e"]
    assert told["gen_ai.latency.time_in_model_inference"] == pytest.approx(
        told["gen_ai.latency.time_in_model_prefill"] + told["gen_ai.latency.time_in_model_decode"]
    )
    assert collector.services == {"chat"}
    (line,) = (getattr(each, FIELDS) for each in caplog.records if each.name == "specmesh.requests")
    assert (line["id"], line["trace"]) == ("mine", TRACE)


async def test_a_client_that_does_not_record_its_trace_gets_none(
    mesh: FakeMesh, http: aiohttp.ClientSession, collector: OtlpCollector
) -> None:
    target = await mesh.start_target(tells_times)
    await mesh.start_door(otlp_traces_endpoint=collector.url)
    await ask(http, mesh, {"traceparent": f"00-{TRACE}-{SPAN}-00"})
    await ask(http, mesh, {}, return_timeline=True)
    spans = await spans_after(mesh, collector)
    assert whole_of(spans)["traceId"] != TRACE
    assert [asked.timeline for asked in target.asked] == [False, True]


async def test_several_answers_have_phases_each(
    mesh: FakeMesh, http: aiohttp.ClientSession, collector: OtlpCollector
) -> None:
    await mesh.start_target(tells_times)
    await mesh.start_door(otlp_traces_endpoint=collector.url)
    await ask(http, mesh, {}, n=2, stream=True)
    spans = await spans_after(mesh, collector)
    whole_of(spans)
    assert [facts(span)["specmesh.choice"] for span in spans if span["name"] == "prefill"] == [0, 1]
    assert len([span for span in spans if span["name"] == "tokenize"]) == 1


async def test_embeddings_are_traced_as_a_whole(
    mesh: FakeMesh, http: aiohttp.ClientSession, collector: OtlpCollector
) -> None:
    await mesh.start_target(says(""))
    await mesh.start_door(otlp_traces_endpoint=collector.url)
    async with http.post(f"{mesh.url}/v1/embeddings", json={"model": MODEL, "input": ["one", "two"]}) as response:
        usage = (await response.json())["usage"]
    (whole,) = await spans_after(mesh, collector)
    told = facts(whole)
    assert (told["gen_ai.operation.name"], told["gen_ai.usage.output_tokens"]) == ("embeddings", 0)
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]


async def test_a_failure_is_an_error_of_the_trace_also_after_a_stream_began(
    mesh: FakeMesh, http: aiohttp.ClientSession, collector: OtlpCollector
) -> None:
    async def fails(target: object, message: Generate, out: StreamWriter) -> None:
        await out.send(failed(message, "engine_broke"))

    await mesh.start_target(fails)
    await mesh.start_door(otlp_traces_endpoint=collector.url)
    await ask(http, mesh, {})
    await ask(http, mesh, {}, stream=True)
    spans = await spans_after(mesh, collector)
    wholes = [span for span in spans if span["kind"] == 2]
    assert [span["status"] for span in wholes] == [{"code": 2}] * 2
    assert {facts(span)["error.type"] for span in wholes} == {"engine_broke"}


async def test_nothing_of_a_text_is_in_a_trace(
    mesh: FakeMesh, http: aiohttp.ClientSession, collector: OtlpCollector
) -> None:
    await mesh.start_target(says("answersecret"))
    await mesh.start_door(otlp_traces_endpoint=collector.url)
    await ask(http, mesh, {}, prompt="promptsecret", stop="stopsecret", user="usersecret")
    await spans_after(mesh, collector)
    assert collector.bodies
    assert not any(b"secret" in body for body in collector.bodies)


async def test_a_collector_that_is_dead_costs_only_spans_which_are_counted(
    mesh: FakeMesh, http: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    await mesh.start_target(tells_times)
    await mesh.start_door(otlp_traces_endpoint=f"http://127.0.0.1:{unused_tcp_port}/v1/traces")
    answers = await asyncio.gather(*(ask(http, mesh, {}) for _ in range(3)))
    assert {answer["choices"][0]["text"] for answer in answers} == {"a b c"}
    await mesh.node.stop()
    dropped = mesh.registry.get_sample_value("specmesh:trace_spans_total", {"result": "dropped"})
    assert dropped == 3 * 7  # queue twice
    assert mesh.registry.get_sample_value("specmesh:trace_spans_total", {"result": "sent"}) == 0


async def test_without_an_endpoint_no_worker_is_asked_for_times(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(tells_times)
    await mesh.start_door()
    await ask(http, mesh, {"traceparent": f"00-{TRACE}-{SPAN}-01"})
    assert [asked.timeline for asked in target.asked] == [False]
