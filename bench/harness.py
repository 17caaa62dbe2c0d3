"""The load harness measures itself: what it takes in on one core, what it adds to latencies, whether it is on time.

The harness runs on a core of its own, whatever sends to it on the others (the row says which; on a machine of a single
core they share it). Where a part compares times, they are those of one clock, the machine's.

`sender`: a sender with precomputed bytes stands in for the server. It writes as fast as it can (`ceiling`), or 20 000
chunks a second on a clock (`paced`): then the times between chunks that the harness saw stand beside those between the
sender's writes.
`arrivals`: 200 requests a second in an open loop, and how far from its time each left and was read by the sender.
`mesh`: the real thing. The mock engine takes `--step-ms` a step, and all of its drafts stand: a chunk holds several
tokens, which is how a mesh of which everything runs on one core comes to 20 000 tokens a second. Some of the
streams are not the harness's but those of a plain reader in another process, for which the kernel noted when the bytes
were there (SO_TIMESTAMPNS): neither waiting for a core nor an event loop is in these times. The p99 between *chunks* is
compared, which is stricter than that between tokens: most tokens of a chunk follow at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import uvloop

from bench.kernel_times import read_streams
from bench.running_mesh import RunningMesh, running_mesh
from bench.shown import Shown
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
OBSERVED = 8  # of the streams are the plain reader's
DRAFTS = {"method": "ngram", "num_speculative_tokens": 7}

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SHOWN = (
    Shown("The load harness itself", "ceiling|paced",
          {"chunks_per_s": "chunks/s", "cpu_share:.2f": "of a core",
           "sender_itl_p99_ms": "between chunks at the sender p99, ms", "itl_p99_ms": "as the harness saw it"}),
    Shown("Requests that left on time", "arrivals_*",
          {"requests_per_s": "requests/s", "left_ms>p99": "late p99, ms", "left_within_1_ms:.1%": "within 1 ms"}),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2000, help="of each stream")
    parser.add_argument("--rate", type=int, default=20_480, help="chunks/s of the paced part, all streams")
    parser.add_argument("--arrivals", type=float, default=200.0, help="requests/s of the open loop")
    parser.add_argument("--seconds", type=float, default=10.0, help="of arrivals")
    parser.add_argument("--rounds", type=int, default=3, help="requests of each stream of the mesh")
    parser.add_argument("--step-ms", type=float, default=15.0, help="of the mock engine")
    parser.add_argument("--only", choices=PARTS, help="one part")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"missed": [], "cores": dict(zip(("harness", "others"), cores(), strict=True))}
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


def cores() -> tuple[list[int], list[int]]:
    """The harness's one, and everyone else's."""
    mine = sorted(os.sched_getaffinity(0))
    return mine[-1:], mine[:-1] or mine


@contextlib.contextmanager
def on_cores(some: list[int]) -> Iterator[None]:
    """This thread, and the processes it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, some)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def harness(plan: Plan) -> Result:
    with on_cores(cores()[0]):
        return uvloop.run(run(plan))


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
    with on_cores(cores()[1]):
        sender.start()
    port = ours.recv()
    ask = Ask(model="sender", max_tokens=tokens)
    plan = Plan(f"http://127.0.0.1:{port}", ask, workload("prompt", 0, prompt="x"), arrivals)
    result = harness(plan)
    ours.send("stop")
    told = ours.recv()
    sender.join()
    return result, told


def _lag(seen: dict[str, Any]) -> float:
    return float((seen["harness"]["loop_lag_s"] or {}).get("p99", 0.0) * 1e3)


# The mesh -------------------------------------------------------------------------------------------------


def _from_mesh(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    # Pages for all streams: with fewer some of them wait.
    pages = 2 * options.streams * (options.tokens // 32 + 2)
    profile = {"step_ms": options.step_ms, "row_us": 0, "acceptance": 1.0, "vocab_size": 49152, "pages": pages}
    settings = {"mock_profile": json.dumps(profile), "max_waiting": 4 * options.streams, "max_step_tokens": 2048}
    with contextlib.ExitStack() as running:
        with on_cores(cores()[1]):
            mesh = running.enter_context(running_mesh(engine="mock", **settings))
        _loaded(mesh, options, 1)
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        reader = spawn.Process(target=_plain_reader, args=(theirs, mesh.port, _body(options)), daemon=True)
        with on_cores(cores()[1]):
            reader.start()
        seen = _loaded(mesh, options, options.rounds)
        ours.send("stop")
        gaps = ours.recv()
        reader.join()
    if seen["requests"]["failed"] or not gaps:
        figures["missed"].append(f"the mesh failed under its load: {seen['errors']}")
        return
    theirs_p99 = float(np.percentile(gaps, 99)) * 1e3
    added = seen["chunk_gap_s"]["p99"] * 1e3 - theirs_p99
    figures["mesh"] = {
        "tokens_per_s": seen["throughput"]["output_tokens_per_s"],
        "chunks_per_s": seen["throughput"]["chunks_per_s"],
        "cpu_share": seen["harness"]["cpu_share"],
        "itl_p99_ms": seen["itl_s"]["p99"] * 1e3,
        "chunk_gap_p50_ms": seen["chunk_gap_s"]["p50"] * 1e3,
        "chunk_gap_p99_ms": seen["chunk_gap_s"]["p99"] * 1e3,
        "kernel_gap_p50_ms": float(np.percentile(gaps, 50)) * 1e3,
        "kernel_gap_p99_ms": theirs_p99,
        "kernel_gaps": len(gaps),
        "added_p99_ms": added,
        "harness_lag_p99_ms": _lag(seen),
    }
    _missed(figures, "tokens/s from the mock engine", figures["mesh"]["tokens_per_s"], BAR_CHUNKS, least=True)
    _missed(figures, "ms added to the p99 between chunks of the mock engine", added, BAR_ITL_MS)


def _loaded(mesh: RunningMesh, options: argparse.Namespace, rounds: int) -> dict[str, Any]:
    ask = Ask(max_tokens=options.tokens, ignore_eos=True, speculation=DRAFTS)
    callers = options.streams - OBSERVED
    arrivals = Arrivals(concurrency=callers, requests=rounds * callers)
    (seen,) = harness(Plan(mesh.url, ask, workload("questions", 0), arrivals)).runs
    return seen


def _body(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": "smollm2-135m-instruct", "prompt": "Count.", "max_tokens": options.tokens, "stream": True,
        "ignore_eos": True, "temperature": 0, "speculation": DRAFTS,
    }  # fmt: skip


def _plain_reader(pipe: Connection, port: int, body: dict[str, Any]) -> None:
    pipe.send(read_streams(port, body, OBSERVED, lambda: pipe.poll()))


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
