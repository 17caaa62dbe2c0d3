"""The mesh alone: all four processes with the mock engine at zero latency, loaded over HTTP from outside by 64 streams,
with and without drafts.

The harness and the mesh share the cores, as the bar of 20 000 tokens/s on 2 cores means it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.running_mesh import ROOT, RunningMesh, resident_mb, running_mesh
from bench.shown import Shown

HELP = "tokens/s through the whole mesh (mock engine)"
BAR_TOKENS = 20_000
SHOWN = (
    Shown("The mesh alone", "throughput_*",
          {"tokens_per_s": "tokens/s", "ttft_ms>p50": "first token p50, ms", "ttft_ms>p99": "p99",
           "itl_ms>p50": "between chunks p50, ms", "itl_ms>p99": "p99"},
          "All four processes with the mock engine at zero latency, 64 streams over HTTP from the same cores."),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each throughput run")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--acceptance", type=float, default=0.6, help="of the mock engine")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    profile = json.dumps({"step_ms": 0, "row_us": 0, "acceptance": options.acceptance, "vocab_size": 49152})
    figures: dict[str, Any] = {"missed": []}
    with running_mesh(engine="mock", mock_profile=profile, max_waiting=4 * options.streams) as mesh:
        _load(mesh, options, requests=options.streams)  # warm
        _throughput(mesh, options, figures)
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


def _load(
    mesh: RunningMesh, options: argparse.Namespace, *, requests: int = 0, duration: float = 0.0,
    speculation: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One run of the harness in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        file = Path(folder) / "figures.json"
        command = [
            sys.executable, "-m", "loadtest", mesh.url, f"--json={file}", "--quiet", "--ignore-eos",
            f"--concurrency={options.streams}", f"--max-tokens={options.max_tokens}", "--max-error-rate=1",
            f"--requests={requests}", f"--duration={duration}", "--timeout=120",
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
