"""The load harness measures itself: what it can take in on one core, and what it adds to latencies.

A sender with precomputed bytes stands in for the server, in a process of its own. `ceiling`: it writes as fast
as it can. `paced`: it writes 20 000+ chunks a second on a clock, and the times between chunks that the harness
sees are compared with those of the sender.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import uvloop

from loadtest.arrivals import Arrivals
from loadtest.ask import Ask
from loadtest.plan import Plan
from loadtest.run import run
from loadtest.workloads import workload

HELP = "tokens/s the load harness takes in on one core, and the latency it adds"
BAR_CHUNKS = 20_000
BAR_ITL_MS = 1.0

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2000, help="of each stream")
    parser.add_argument("--rate", type=int, default=20_480, help="chunks/s of the paced part, all streams")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    ceiling = _against(0.0, options.streams, options.tokens)
    paced = _against(options.streams / options.rate, options.streams, options.tokens)
    added = paced["itl_p99_ms"] - paced["sender_itl_p99_ms"]
    figures = {"ceiling": ceiling, "paced": paced, "added_itl_p99_ms": added, "missed": []}
    if ceiling["chunks_per_s"] < BAR_CHUNKS:
        figures["missed"].append(f"{ceiling['chunks_per_s']:.0f} chunks/s, the bar is {BAR_CHUNKS}")
    if added > BAR_ITL_MS:
        figures["missed"].append(f"adds {added:.2f} ms to ITL p99, the bar is {BAR_ITL_MS}")
    return figures


def _against(interval: float, streams: int, tokens: int) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    sender = spawn.Process(target=_sender, args=(theirs, interval, tokens), daemon=True)
    sender.start()
    port = ours.recv()
    plan = Plan(
        url=f"http://127.0.0.1:{port}",
        ask=Ask(model="sender", max_tokens=tokens),
        workload=workload("chat", 0, prompt="x"),
        arrivals=Arrivals(concurrency=streams, requests=streams),
    )
    (seen,) = uvloop.run(run(plan)).runs
    ours.send("stop")
    sender_p99 = ours.recv()
    sender.join()
    assert seen["requests"]["ok"] == streams, seen["errors"]
    cpu = seen["harness"]["cpu_share"]
    return {
        "streams": streams,
        "chunks_per_s": seen["throughput"]["chunks_per_s"],
        "cpu_share": cpu,
        "us_per_chunk": cpu / seen["throughput"]["chunks_per_s"] * 1e6,
        "itl_p99_ms": seen["itl_s"]["p99"] * 1e3,
        "sender_itl_p99_ms": sender_p99 * 1e3,
        "harness_lag_p99_ms": (seen["harness"]["loop_lag_s"] or {}).get("p99", 0.0) * 1e3,
    }


# The sender's process -------------------------------------------------------------------------------------


def _sender(pipe: Connection, interval: float, tokens: int) -> None:
    uvloop.run(_serve(pipe, interval, tokens))


async def _serve(pipe: Connection, interval: float, tokens: int) -> None:
    gaps: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
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
    pipe.send(float(np.percentile(gaps, 99)))


def _chunk(choice: bytes, more: bytes = b"") -> bytes:
    """As long as a real one: id, object, created and model are part of every chunk."""
    fields = b'"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1,"model":"sender"'
    return _frame(b'data: {%b,"choices":[%b]%b}\n\n' % (fields, choice, more))


def _frame(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)
