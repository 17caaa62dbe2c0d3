"""Servers beside each other: `specmesh load` sends them the same requests in turns. One table a workload.

    python -m bench peers --served 'label=specmesh;url=http://127.0.0.1:8000' 'label=peer;url=http://127.0.0.1:8101'

Starts no server. A server is what `specmesh load --ab` takes for a side: `label=` is its name in table and row,
`model=` spares asking for its list of models, any other field goes into its requests. All requests go to the chat
route, greedy. The servers take turns, a block of requests each, with a pause before it; every server but the first gets
the ratio of its throughput to the first one's, with the 95 % interval over blocks. A server that sends no usage has its
chunks counted as tokens: `without_usage` says of how many requests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import turns
from bench.running_mesh import ROOT
from loadtest.ask import side
from loadtest.workloads import REQUESTS

LATENCIES = {"ttft_p50_ms": ("ttft_s", "p50"), "ttft_p99_ms": ("ttft_s", "p99"), "tpot_p50_ms": ("tpot_s", "p50"),
             "e2e_p50_ms": ("e2e_s", "p50")}  # fmt: skip

LEAST_BLOCKS = 3


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--served", nargs="+", default=[], metavar="SIDE", help="servers, and nothing else")
    shown = "of --served; edit is cold, so a server that refuses cache_salt needs cache_salt=null in its side"
    parser.add_argument("--workloads", default="chat,edit", help=shown)
    parser.add_argument("--concurrency", default="1,4", help="of --served")
    parser.add_argument("--cold", action="store_true", help="of --served: a cache_salt for each request")
    parser.add_argument("--pause", type=float, default=turns.PAUSE, help="of --served: seconds before a server's turn")
    parser.add_argument("--requests", type=int, default=12, help="of --served: a server's with one stream")
    parser.add_argument("--waves", type=int, default=12, help="of --served: requests a stream when there are several")
    parser.add_argument("--block", type=int, default=2, help="of --served: of these, in a server's turn")
    parser.add_argument("--turns", type=int, default=0, help="of --served: most turns of a session; 0: all")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"servers": [side(text).label for text in options.served], "tokens": options.tokens}
    names = options.workloads.split(",")
    # Nothing was drafted from other answers, or from pages that another request had computed.
    figures["cold"] = [name for name in names if options.cold or REQUESTS[name].cold]
    for name in names:
        streams = map(int, options.concurrency.split(","))
        figures[name] = [line for each in streams for line in lines(loaded(name, each, options, options.pause))]
    return figures


def loaded(name: str, streams: int, options: argparse.Namespace, pause: float = 0.0) -> dict[str, Any]:
    """One run of the harness; it shows its table itself."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        file = Path(folder) / "figures.json"
        words = command(name, streams, options, pause)
        print("== python " + " ".join(words), flush=True)
        # A server that fails is seen in its row.
        subprocess.run([sys.executable, *words, f"--json={file}", "--max-error-rate=1"], cwd=ROOT, check=True)
        seen: dict[str, Any] = json.loads(file.read_text())
    return seen


def command(name: str, streams: int, options: argparse.Namespace, pause: float = 0.0) -> list[str]:
    count = str(sessions(name, streams, options))
    return [
        "-m", "loadtest", "--workload", name, "--endpoint", "chat", "--concurrency", str(streams), "--requests", count,
        "--max-tokens", str(options.tokens), "--turns", str(options.turns), *["--cold"] * options.cold,
        "--ab-block", str(block(streams, options)), "--ab-pause", str(pause), "--ab", *options.served,
    ]  # fmt: skip


def sessions(name: str, streams: int, options: argparse.Namespace) -> int:
    """What the harness counts. Of a workload with several requests a session there are fewer, but enough blocks for an
    interval."""
    requests: int = options.requests if streams == 1 else options.waves * streams
    turns = REQUESTS[name].turns if name in REQUESTS else 1
    return requests if turns == 1 else max(requests // turns, LEAST_BLOCKS * block(streams, options))


def block(streams: int, options: argparse.Namespace) -> int:
    """Sessions in a server's turn."""
    return 1 if streams == 1 else int(options.block) * streams


def lines(seen: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for each server at one number of streams, the first one's first."""
    first, *others = (row(run) for run in seen["runs"])
    compared = [line | beside_first(each) for line, each in zip(others, seen["comparisons"], strict=True)]
    return [first, *compared]


def beside_first(compared: dict[str, Any]) -> dict[str, Any]:
    found = compared["throughput"] or {"ratio": None, "low": None, "high": None}
    return {"of_first": {name: found[name] for name in ("ratio", "low", "high")},
            "compared": compared["texts"]["compared"], "texts_differ": compared["texts"]["differ"]}  # fmt: skip


def row(run: dict[str, Any]) -> dict[str, Any]:
    """A server at a number of streams."""
    times = {name: run[table] and round(run[table][which] * 1e3, 2) for name, (table, which) in LATENCIES.items()}
    drafts = run["acceptance"]
    return {
        "server": run["side"],
        "concurrency": run["load"]["concurrency"],
        "tokens_per_s": round(run["throughput"]["output_tokens_per_s"], 1),
        **times,
        "ok": run["requests"]["ok"],
        "failed": run["requests"]["failed"],
        "output_tokens": run["tokens"]["output"],
        "without_usage": run["tokens"]["requests_without_usage"],
        "accepted_per_step": drafts and drafts["accepted_per_step"],
    }
