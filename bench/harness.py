"""The load harness measures itself: what it takes in on one core, what it adds to latencies, whether it is on time.

A sender with precomputed bytes stands in for the server, in a process of its own. `ceiling`: it writes as fast
as it can. `paced`: it writes 20 000+ chunks a second on a clock, and the times between chunks that the harness
sees are compared with those of the sender. `arrivals`: 200 requests a second in an open loop, and how far from its time
each left and was read by the sender. `mesh`: the real thing with the mock engine at 20 000+ tokens a second; a plain
blocking reader of a few streams beside the harness, in a process of its own, says what the times between chunks were.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import uvloop

from bench.running_mesh import RunningMesh, running_mesh
from loadtest.arrivals import Arrivals
from loadtest.ask import Ask
from loadtest.plan import Plan
from loadtest.run import Result, run
from loadtest.workloads import workload

HELP = "tokens/s the load harness takes in on one core, the latency it adds, and its punctuality"
BAR_CHUNKS = 20_000
BAR_ITL_MS = 1.0
BAR_LATE_MS = 1.0
PARTS = ("sender", "arrivals", "mesh")
OBSERVED = 4  # streams of the plain reader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2000, help="of each stream")
    parser.add_argument("--rate", type=int, default=20_480, help="chunks/s of the paced part, all streams")
    parser.add_argument("--arrivals", type=float, default=200.0, help="requests/s of the open loop")
    parser.add_argument("--seconds", type=float, default=10.0, help="of arrivals and of the mesh")
    parser.add_argument("--step-ms", type=float, default=2.5, help="of the mock engine: 64 streams are 25 600 tokens/s")
    parser.add_argument("--only", choices=PARTS, help="one part")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"missed": []}
    if options.only in (None, "sender"):
        _from_sender(options, figures)
    if options.only in (None, "arrivals"):
        _punctuality(options, figures)
    if options.only in (None, "mesh"):
        _from_mesh(options, figures)
    return figures


def _missed(figures: dict[str, Any], what: str, seen: float, bar: float, least: bool = False) -> None:
    if (seen < bar) if least else (seen > bar):
        figures["missed"].append(f"{what}: {seen:.4g}, the bar is {bar:g}")


# A sender -------------------------------------------------------------------------------------------------


def _from_sender(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    ceiling = _against(0.0, options.streams, options.tokens)
    paced = _against(options.streams / options.rate, options.streams, options.tokens)
    added = paced["itl_p99_ms"] - paced["sender_itl_p99_ms"]
    figures |= {"ceiling": ceiling, "paced": paced, "added_itl_p99_ms": added}
    _missed(figures, "chunks/s", ceiling["chunks_per_s"], BAR_CHUNKS, least=True)
    _missed(figures, "ms added to ITL p99", added, BAR_ITL_MS)


def _against(interval: float, streams: int, tokens: int) -> dict[str, Any]:
    result, told = _with_sender(interval, tokens, Arrivals(concurrency=streams, requests=streams))
    (seen,) = result.runs
    assert seen["requests"]["ok"] == streams, seen["errors"]
    cpu, rate = seen["harness"]["cpu_share"], seen["throughput"]["chunks_per_s"]
    return {
        "streams": streams,
        "chunks_per_s": rate,
        "cpu_share": cpu,
        "us_per_chunk": cpu / rate * 1e6,
        "itl_p99_ms": seen["itl_s"]["p99"] * 1e3,
        "sender_itl_p99_ms": float(np.percentile(told["gaps"], 99)) * 1e3,
        "harness_lag_p99_ms": _lag(seen),
    }


def _punctuality(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    count = int(options.arrivals * options.seconds)
    for process in ("constant", "poisson"):
        arrivals = Arrivals(rate=options.arrivals, process=process, requests=count)
        result, told = _with_sender(0.0, 4, arrivals)
        (seen,) = result.runs
        scheduled = np.sort([outcome.scheduled for _, outcome in result.records])
        # The clock is the machine's, and one for both processes. A connection that had to be opened is in it.
        read = (np.sort(told["read"]) - scheduled) * 1e3
        late = {name: seen["start_lateness_s"][name] * 1e3 for name in ("p50", "p99", "max")}
        figures[f"arrivals_{process}"] = {
            "requests_per_s": options.arrivals,
            "left_ms": late,
            "left_within_1_ms": float(
                np.mean([outcome.started - outcome.scheduled <= 1e-3 for _, outcome in result.records])
            ),
            "read_ms": {f"p{each}": float(np.percentile(read, each)) for each in (50, 99)},
            "cpu_share": seen["harness"]["cpu_share"],
        }
        _missed(figures, f"ms late, p99 ({process})", late["p99"], BAR_LATE_MS)


def _with_sender(interval: float, tokens: int, arrivals: Arrivals) -> tuple[Result, dict[str, list[float]]]:
    """What the harness saw, and what the sender says it did."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    sender = spawn.Process(target=_sender, args=(theirs, interval, tokens), daemon=True)
    sender.start()
    port = ours.recv()
    ask = Ask(model="sender", max_tokens=tokens)
    plan = Plan(f"http://127.0.0.1:{port}", ask, workload("prompt", 0, prompt="x"), arrivals)
    result = uvloop.run(run(plan))
    ours.send("stop")
    told = ours.recv()
    sender.join()
    return result, told


def _lag(seen: dict[str, Any]) -> float:
    return float((seen["harness"]["loop_lag_s"] or {}).get("p99", 0.0) * 1e3)


# The mesh -------------------------------------------------------------------------------------------------


def _from_mesh(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    profile = json.dumps({"step_ms": options.step_ms, "row_us": 0, "vocab_size": 49152})
    with running_mesh(engine="mock", mock_profile=profile, max_waiting=4 * options.streams) as mesh:
        _loaded(mesh, options, seconds=2.0)
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        reader = spawn.Process(target=_plain_reader, args=(theirs, mesh.port, options.tokens), daemon=True)
        reader.start()
        seen = _loaded(mesh, options, options.seconds)
        ours.send("stop")
        gaps = ours.recv()
        reader.join()
    if seen["requests"]["failed"] or not gaps:
        figures["missed"].append(f"the mesh failed under its load: {seen['errors']}")
        return
    added = seen["chunk_gap_s"]["p99"] * 1e3 - float(np.percentile(gaps, 99)) * 1e3
    figures["mesh"] = {
        "tokens_per_s": seen["throughput"]["output_tokens_per_s"],
        "chunks_per_s": seen["throughput"]["chunks_per_s"],
        "cpu_share": seen["harness"]["cpu_share"],
        "chunk_gap_p99_ms": seen["chunk_gap_s"]["p99"] * 1e3,
        "plain_reader_gap_p99_ms": float(np.percentile(gaps, 99)) * 1e3,
        "plain_reader_gaps": len(gaps),
        "added_p99_ms": added,
        "harness_lag_p99_ms": _lag(seen),
    }
    _missed(figures, "tokens/s from the mock engine", figures["mesh"]["tokens_per_s"], BAR_CHUNKS, least=True)
    _missed(figures, "ms added to the p99 between chunks of the mock engine", added, BAR_ITL_MS)


def _loaded(mesh: RunningMesh, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    ask = Ask(max_tokens=options.tokens, ignore_eos=True, speculation={"method": "naive"})
    arrivals = Arrivals(concurrency=options.streams - OBSERVED, duration=seconds)
    (seen,) = uvloop.run(run(Plan(mesh.url, ask, workload("questions", 0), arrivals))).runs
    return seen


def _plain_reader(pipe: Connection, port: int, tokens: int) -> None:
    """A few streams, each read by a thread that does nothing else; a chunk is timed when its line is there."""
    found: list[float] = []
    threads = [
        threading.Thread(target=_read, args=(port, tokens, number, found), daemon=True) for number in range(OBSERVED)
    ]
    for thread in threads:
        thread.start()
    pipe.recv()
    pipe.send(list(found))


def _read(port: int, tokens: int, number: int, found: list[float]) -> None:
    body = {
        "model": "smollm2-135m-instruct", "prompt": f"Count from {number}.", "max_tokens": tokens, "stream": True,
        "ignore_eos": True, "temperature": 0, "speculation": {"method": "naive"},
    }  # fmt: skip
    while True:
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asking.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        before = None
        with asking.getresponse() as answer:
            for line in answer:
                now = time.perf_counter()
                if line.startswith(b"data: {") and b'"text":"' in line and b'"text":""' not in line:
                    if before is not None:
                        found.append(now - before)
                    before = now


# The sender's process -------------------------------------------------------------------------------------


def _sender(pipe: Connection, interval: float, tokens: int) -> None:
    uvloop.run(_serve(pipe, interval, tokens))


async def _serve(pipe: Connection, interval: float, tokens: int) -> None:
    gaps: list[float] = []
    read: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        read.append(time.perf_counter())
        writer.write(HEAD)
        piece, last = _chunk(b'{"index":0,"delta":{"content":" word"},"finish_reason":null}'), 0.0
        due = time.perf_counter()
        for number in range(tokens):
            if interval:
                due += interval
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            now = time.perf_counter()
            writer.write(piece)
            if number:
                gaps.append(now - last)
            last = now
            if not interval:
                await writer.drain()
                await asyncio.sleep(0)
        usage = b',"usage":{"prompt_tokens":1,"completion_tokens":%d,"total_tokens":%d}' % (
            tokens,
            tokens + 1,
        )
        writer.write(_chunk(b'{"index":0,"delta":{},"finish_reason":"length"}'))
        writer.write(_chunk(b"", usage) + _frame(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await asyncio.to_thread(pipe.recv)
    pipe.send({"gaps": gaps, "read": read})


def _chunk(choice: bytes, more: bytes = b"") -> bytes:
    """As long as a real one: id, object, created and model are part of every chunk."""
    fields = b'"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1,"model":"sender"'
    return _frame(b'data: {%b,"choices":[%b]%b}\n\n' % (fields, choice, more))


def _frame(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)
