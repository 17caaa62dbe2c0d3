"""The mesh alone: all four processes with the mock engine at zero latency, loaded over HTTP from outside.

throughput   64 streams, with and without drafts: tokens/s
soak         the same for minutes, resident memory sampled: it must be flat (`--soak 300`)
disconnects  requests hung up at random: afterwards nothing may be left (`--disconnects 10000`)

The harness and the mesh share the cores, as the bar of 20 000 tokens/s on 2 cores means it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.running_mesh import ROLES, ROOT, RunningMesh, open_files, resident_mb, running_mesh, threads
from bench.shown import Shown

HELP = "tokens/s through the whole mesh (mock engine), memory under load, leaks after disconnects"
BAR_TOKENS = 20_000
# Allocators breathe: this much more at the end of a soak than after its first fifth is still flat.
FLAT_MB = 8.0
SETTLE_SECONDS = 30.0

# Gauges that must be 0 when no request runs, wherever a process serves them. Every running handler and stream
# is a task, and counts in bus_mailbox_depth or bus_streams_open; every request at the door is one, too.
AT_REST = (
    "specmesh:num_requests_running",
    "specmesh:num_requests_waiting",
    "specmesh:kv_cache_usage_perc",
    "specmesh:door_requests_running",
    "specmesh:http_connections",
    "specmesh:proposer_sequences",
    "specmesh:bus_mailbox_depth",
    "specmesh:bus_streams_open",
    "specmesh:bus_outbox_bytes",
    "specmesh:bus_credits_outstanding_bytes",
)
SHOWN = (
    Shown("The mesh alone", "throughput_*",
          {"tokens_per_s": "tokens/s", "ttft_ms>p50": "first token p50, ms", "ttft_ms>p99": "p99",
           "itl_ms>p50": "between chunks p50, ms", "itl_ms>p99": "p99"},
          "All four processes with the mock engine at zero latency, 64 streams over HTTP from the same cores."),
    Shown("Memory under load, MB grown", "soak>memory_growth_mb"),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each throughput run")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--acceptance", type=float, default=0.6, help="of the mock engine")
    parser.add_argument("--soak", type=float, default=0.0, help="seconds; the bar is set for 300")
    parser.add_argument("--disconnects", type=int, default=500, help="requests; the bar is set for 10000")
    parser.add_argument("--only", choices=("throughput", "soak", "disconnects"), help="one part")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    profile = json.dumps({"step_ms": 0, "row_us": 0, "acceptance": options.acceptance, "vocab_size": 49152})
    figures: dict[str, Any] = {"missed": []}
    with running_mesh(engine="mock", mock_profile=profile, max_waiting=4 * options.streams) as mesh:
        _load(mesh, options, requests=options.streams)  # warm
        if options.only in (None, "throughput"):
            _throughput(mesh, options, figures)
        if options.soak or options.only == "soak":
            _soak(mesh, options, figures)
        if options.only in (None, "disconnects"):
            _disconnects(mesh, options, figures)
        figures["resident_mb"] = {role: round(resident_mb(pid), 1) for role, pid in mesh.processes().items()}
    return figures


def _throughput(mesh: RunningMesh, options: argparse.Namespace, figures: dict[str, Any]) -> None:
    for method in ("naive", "ngram"):
        run = _load(mesh, options, duration=options.seconds, speculation={"method": method})
        figures[f"throughput_{method}"] = run
        if run["requests"]["failed"]:
            figures["missed"].append(f"{method}: failed {run['errors']}")
        if run["tokens_per_s"] < BAR_TOKENS:
            figures["missed"].append(f"{method}: {run['tokens_per_s']:.0f} tokens/s, the bar is {BAR_TOKENS}")


def _soak(mesh: RunningMesh, options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Growth: the median of the last fifth minus that of the second; the first one fills caches and pools."""
    pids, samples = mesh.processes(), dict[str, list[float]]()
    with ThreadPoolExecutor(1) as beside:
        load = beside.submit(_load, mesh, options, duration=options.soak or 300.0)
        while not load.done():
            time.sleep(1.0)
            for role, pid in pids.items():
                samples.setdefault(role, []).append(resident_mb(pid))
    grown = {role: round(growth(seen), 2) for role, seen in samples.items()}
    figures["soak"] = {**load.result(), "memory_growth_mb": grown}
    figures["missed"] += [f"{role} grew by {mb:.1f} MB during the soak" for role, mb in grown.items() if mb > FLAT_MB]


def growth(samples: list[float]) -> float:
    fifth = max(1, len(samples) // 5)
    return statistics.median(samples[-fifth:]) - statistics.median(samples[fifth : 2 * fifth] or samples[:1])


def _disconnects(mesh: RunningMesh, options: argparse.Namespace, figures: dict[str, Any]) -> None:
    # Once before, so that what is opened once and kept is not taken for a leak.
    _load(mesh, options, requests=2 * options.streams, disconnect=0.9)
    before = _settled(mesh, None)
    run = _load(mesh, options, requests=options.disconnects, disconnect=1.0)
    after = _settled(mesh, before)
    figures["disconnects"] = {**run, "before": before, "after": after}
    # A renamed gauge must not pass for one that is zero.
    figures["missed"] += [f"no process serves {name}" for name in unserved(after)]
    for what in sorted(left_over(before, after)):
        figures["missed"].append(f"after {options.disconnects} disconnects: {what}")


def left_over(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """What is there after a run that was not before it, or should be zero and is not."""
    found = []
    for name, value in after.items():
        if name.startswith("gauge ") and value:
            found.append(f"{name} is {value:g}")
        elif value > before.get(name, 0.0):
            found.append(f"{name} was {before.get(name, 0.0):g} and is {value:g}")
    return found


def unserved(counts: dict[str, float]) -> list[str]:
    served = {name.rpartition(" ")[2] for name in counts if name.startswith("gauge ")}
    return [name for name in AT_REST if name not in served]


def _settled(mesh: RunningMesh, before: dict[str, float] | None) -> dict[str, float]:
    """The counts once they are at rest, or after SETTLE_SECONDS."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        time.sleep(1.0)
        counts = _counts(mesh)
        if not left_over(before if before is not None else counts, counts) or time.monotonic() > end:
            return counts


def _counts(mesh: RunningMesh) -> dict[str, float]:
    counts: dict[str, float] = {}
    for role, pid in mesh.processes().items():
        counts[f"files {role}"] = open_files(pid)
        counts[f"threads {role}"] = threads(pid)
    for role in ROLES:
        samples = mesh.metrics(role)
        counts |= {f"gauge {role} {name}": samples[name] for name in AT_REST if name in samples}
    return counts


def _load(
    mesh: RunningMesh, options: argparse.Namespace, *, requests: int = 0, duration: float = 0.0,
    disconnect: float = 0.0, speculation: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One run of the harness in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        file = Path(folder) / "figures.json"
        command = [
            sys.executable, "-m", "loadtest", mesh.url, f"--json={file}", "--quiet", "--ignore-eos",
            f"--concurrency={options.streams}", f"--max-tokens={options.max_tokens}", "--max-error-rate=1",
            f"--requests={requests}", f"--duration={duration}", f"--disconnect={disconnect}", "--timeout=120",
        ]  # fmt: skip
        if speculation is not None:
            command.append(f"--speculation={json.dumps(speculation)}")
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        seen = json.loads(file.read_text())
    return {
        "tokens_per_s": seen["throughput"]["output_tokens_per_s"],
        "requests_per_s": seen["throughput"]["requests_per_s"],
        "wall_s": seen["wall_s"],
        "requests": seen["requests"],
        "errors": seen["errors"],
        "ttft_ms": _milliseconds(seen["ttft_s"]),
        "itl_ms": _milliseconds(seen["chunk_gap_s"]),
    }


def _milliseconds(row: dict[str, float] | None) -> dict[str, float] | None:
    return row and {name: round(row[name] * 1e3, 3) for name in ("p50", "p90", "p99")}
