"""Traces of a whole mesh with the real model, as a collector of OpenTelemetry gets them."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from otlp_collector import OtlpCollector, facts, whole_of
from running_mesh import RunningMesh

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY: dict[str, Any] = {
    "model": "smollm2-135m-instruct", "prompt": "one two three four " * 8, "max_tokens": 40, "temperature": 0,
    "ignore_eos": True, "speculation": {"method": "ngram"},
}  # fmt: skip


async def ask(http: aiohttp.ClientSession, mesh: RunningMesh, **more: Any) -> list[dict[str, Any]]:
    """The chunks of an answer."""
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    body = {**BODY, "stream": True, **more}
    async with http.post(f"{mesh.url}/v1/completions", json=body, headers=headers) as answer:
        assert answer.status == 200
        events = [line[6:] for line in (await answer.text()).splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


@pytest.mark.slow
async def test_a_request_is_one_trace_of_all_roles_and_a_collector_that_dies_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=of%20ours")
    async with OtlpCollector() as collector, aiohttp.ClientSession() as http:
        settings = {"dtype": "float32", "otlp_traces_endpoint": collector.url}
        mesh = await asyncio.to_thread(RunningMesh, tmp_path, settings)
        try:
            await asyncio.to_thread(mesh.wait_until_ready)
            *_, last = await ask(http, mesh, return_timeline=True, stream_options={"include_usage": True})
            async with asyncio.timeout(30):
                await collector.got.wait()
            seen_whole(collector.spans, last)
            assert collector.keys == {"of ours"}
            await collector.__aexit__(None, None, None)
            assert len(await ask(http, mesh)) > 1
        finally:
            assert await asyncio.to_thread(mesh.stop) == 0


def seen_whole(spans: list[dict[str, Any]], last: dict[str, Any]) -> None:
    whole = whole_of(spans)
    assert (whole["traceId"], whole["parentSpanId"]) == (TRACE, SPAN)
    phases = {span["name"]: span for span in spans if span is not whole}
    assert set(phases) == {"queue", "tokenize", "prefill", "decode", "propose", "stream"}
    roles = {facts(span)["specmesh.role"] for span in phases.values()}
    assert roles == {"streamer", "tokenizer", "worker", "proposer"}
    order = [phases[name] for name in ("tokenize", "prefill", "decode")]
    for earlier, later in pairwise(order):
        assert int(earlier["endTimeUnixNano"]) <= int(later["startTimeUnixNano"])
    # The same times as the answer's timeline.
    (tokenize,) = (each for each in last["metrics"]["timeline"] if each["what"] == "tokenize")
    assert seconds(phases["tokenize"]) == pytest.approx((tokenize["to_ms"] - tokenize["from_ms"]) / 1e3, abs=1e-6)
    told, usage = facts(whole), last["usage"]
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (usage["prompt_tokens"], 40)
    assert facts(phases["prefill"])["specmesh.tokens"] == usage["prompt_tokens"]
    assert facts(phases["decode"])["specmesh.tokens"] == 39  # the first comes out of the prompt
    assert told["specmesh.drafted_tokens"] >= told["specmesh.accepted_tokens"] > 0
    assert told["specmesh.method"] == "ngram"
    assert told["gen_ai.latency.time_in_model_inference"] < told["gen_ai.latency.e2e"] == pytest.approx(seconds(whole))


def seconds(span: dict[str, Any]) -> float:
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9
