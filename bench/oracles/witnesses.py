"""Other people's load tools beside ours: GuideLLM, AIPerf and `specmesh load` on one closed loop against one server.

    python -m bench witnesses --guidellm VENV --aiperf VENV [--engine torch]

Both tools live in virtual environments of their own, given by path (`pip install guidellm`, `pip install aiperf`). They
get the same prompts, the same limits and a folder with the model's tokenizer: nothing is fetched. The tools take turns;
a figure is the median of its rounds, and each tool's first round, which warms caches, isn't kept. A mesh is started
without drafts (a chunk is a token then, mostly).

What they mean by the same words, from the times at which chunks with text came:

ttft          ours: from when a caller's request was due, which in a closed loop is when its last answer ended. AIPerf:
              from before the request goes to the connection pool. GuideLLM: from the first byte of its header.
tpot          (last chunk - first chunk) / (tokens - 1), of each request; both call it inter-token latency.
tokens_per_s  ours and AIPerf: all tokens / (last end - first start). GuideLLM spreads each request's tokens evenly
              between its first and last chunk, and weighs rates with the time they lasted: the same mean.

A caller that takes 20 ms to ask again leaves the server that much idler. So there is one caller, prompts are long and
computed in many steps (`--piece`), and answers are long beside what a tool needs between two.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.rows import ROOT
from bench.running_mesh import running_mesh
from bench.shown import Shown
from loadtest.workloads import workload
from loadtest.workloads.session import as_completion
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir

HELP = "GuideLLM, AIPerf and specmesh load in turns against one server: do their figures agree? (--guidellm, --aiperf)"
BAR = 0.05
FIGURES = ("ttft_p50_ms", "ttft_mean_ms", "tpot_p50_ms", "tpot_mean_ms", "tokens_per_s")
PROFILE = {"step_ms": 5, "row_us": 200, "vocab_size": 49152}
OURS = "specmesh load"

Seen = dict[str, float]
SHOWN = (
    Shown("Other load tools on the same requests", "figures>*",
          {"ttft_p50_ms": "first token p50, ms", "tpot_p50_ms": "a token p50, ms", "tokens_per_s": "tokens/s"}),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--guidellm", type=Path, metavar="VENV", help="virtual environment that has GuideLLM")
    parser.add_argument("--aiperf", type=Path, metavar="VENV", help="virtual environment that has AIPerf")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name, folder, GGUF file or hub id")
    parser.add_argument("--engine", default="mock", choices=("torch", "mock"), help="of the mesh")
    parser.add_argument("--workload", default="long-prompt", help="one of specmesh load's, each prompt of it once")
    parser.add_argument("--piece", type=int, default=128, help="max_step_tokens of the mesh")
    parser.add_argument("--concurrency", type=int, default=1, help="callers")
    parser.add_argument("--requests", type=int, default=16, help="of each tool in each round")
    parser.add_argument("--max-tokens", type=int, default=192, help="of each answer, exactly")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each tool, after one that isn't kept")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    tools: dict[str, Callable[[Path, str, argparse.Namespace], Seen]] = {OURS: ours}
    tools |= {"GuideLLM": guidellm} if options.guidellm else {}
    tools |= {"AIPerf": aiperf} if options.aiperf else {}
    seen: dict[str, list[Seen]] = {name: [] for name in tools}
    settings = {"model": options.model, "method": "naive", "max_step_tokens": options.piece, "prefix_cache": False}
    if options.engine == "mock":
        settings |= {"engine": "mock", "mock_profile": json.dumps(PROFILE)}
    with tempfile.TemporaryDirectory(prefix="witnesses-") as folder, running_mesh(**settings) as mesh:
        prepare(Path(folder), options)
        for turn in range(-1, options.rounds):
            # Who is first changes.
            for name in [*tools][turn % len(tools) :] + [*tools][: turn % len(tools)]:
                found = tools[name](Path(folder), mesh.url, options)
                print(f"round {turn + 1}, {name}: {json.dumps(rounded(found))}", flush=True)
                if turn >= 0:
                    seen[name].append(found)
    medians = {name: median(each) for name, each in seen.items()}
    told_of = {name: getattr(options, name) for name in ("engine", "workload", "concurrency", "requests", "piece")}
    return told_of | {
        "figures": {name: rounded(each) for name, each in medians.items()},
        "missed": too_far(medians),
    }


def prepare(folder: Path, options: argparse.Namespace) -> None:
    """The same prompts in each tool's form, and the tokenizer at a relative path, which no tool takes for a hub."""
    made = workload(options.workload, 1).session
    prompts = [as_completion(made(index).turns[0].body)["prompt"] for index in range(options.requests)]
    for name, field in (("ours.jsonl", "prompt"), ("guidellm.jsonl", "prompt"), ("aiperf.jsonl", "text")):
        (folder / name).write_text("".join(json.dumps({field: prompt}) + "\n" for prompt in prompts))
    kept = ensure_model(options.model, cache_dir(Settings.for_tests()))
    (folder / "tokenizer").symlink_to(kept.resolve(), target_is_directory=True)


# The tools ------------------------------------------------------------------------------------------------


def ours(folder: Path, url: str, options: argparse.Namespace) -> Seen:
    file = folder / "ours.json"
    run(
        folder, sys.executable, "-m", "loadtest", url, f"--json={file}", "--quiet", "--workload=ours.jsonl",
        "--endpoint=chat", "--ignore-eos", f"--model={options.model}", f"--concurrency={options.concurrency}",
        f"--requests={options.requests}", f"--max-tokens={options.max_tokens}",
    )  # fmt: skip
    figures = json.loads(file.read_text())
    times = [figures[name][which] * 1e3 for name in ("ttft_s", "tpot_s") for which in ("p50", "mean")]
    return dict(zip(FIGURES, [*times, figures["throughput"]["output_tokens_per_s"]], strict=True))


def guidellm(folder: Path, url: str, options: argparse.Namespace) -> Seen:
    file = folder / "guidellm.json"
    # Usage with every chunk is its own wish; servers that don't know that would refuse all of its requests.
    plain = {"include_usage": True, "continuous_usage_stats": False}
    body = {"stream_options": plain, "ignore_eos": True, "temperature": 0, "max_tokens": options.max_tokens}
    backend = {
        "kind": "openai_http", "target": url, "model": options.model, "http2": False, "validate_backend": False,
        "request_format": "/v1/chat/completions", "extras": {"body": body},
    }  # fmt: skip
    run(
        folder, options.guidellm / "bin" / "guidellm", "run", "--disable-progress",
        "--backend", json.dumps(backend),
        "--profile", json.dumps({"kind": "concurrent", "streams": [options.concurrency]}),
        "--constraint", json.dumps({"kind": "max_requests", "count": options.requests}),
        "--tokenizer", json.dumps({"kind": "huggingface_auto", "model": "./tokenizer"}),
        "--data", json.dumps({"kind": "json_file", "path": "guidellm.jsonl"}),
        "--output", json.dumps({"kind": "json", "path": str(file)}),
    )  # fmt: skip
    metrics = json.loads(file.read_text())["benchmarks"][0]["metrics"]
    ttft, itl = (metrics[name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    if not ttft["count"]:
        raise SystemExit("GuideLLM: no request succeeded")
    rate = metrics["output_tokens_per_second"]["successful"]["mean"]
    return dict(zip(FIGURES, (ttft["median"], ttft["mean"], itl["median"], itl["mean"], rate), strict=True))


def aiperf(folder: Path, url: str, options: argparse.Namespace) -> Seen:
    out = folder / "aiperf"
    extra = {"ignore_eos": True, "temperature": 0, "max_tokens": options.max_tokens}
    run(
        folder, options.aiperf / "bin" / "aiperf", "profile", "--model", options.model, "--url", url,
        "--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--tokenizer", "./tokenizer",
        "--input-file", "aiperf.jsonl", "--custom-dataset-type", "single_turn",
        "--concurrency", str(options.concurrency), "--request-count", str(options.requests),
        "--extra-inputs", json.dumps(extra), "--output-artifact-dir", str(out), "--ui", "none",
        "--no-gpu-telemetry", "--no-server-metrics",
    )  # fmt: skip
    figures = json.loads(next(out.rglob("profile_export_aiperf.json")).read_text())
    ttft, itl = figures["time_to_first_token"], figures["inter_token_latency"]
    rate = figures["output_token_throughput"]["avg"]
    return dict(zip(FIGURES, (ttft["p50"], ttft["avg"], itl["p50"], itl["avg"], rate), strict=True))


def run(folder: Path, *words: str | Path) -> None:
    """Runs a tool in the folder; what it said is shown when it failed. Its packages are its environment's alone. A
    relative tokenizer needs no hub; told to be offline, AIPerf takes its path for a hub's name."""
    here = os.environ | {"PYTHONPATH": str(ROOT) if words[0] == sys.executable else ""}
    finished = subprocess.run(
        list(map(str, words)), cwd=folder, env=here, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if finished.returncode:
        raise SystemExit(f"{words[0]} failed:\n{finished.stdout[-3000:]}\n{finished.stderr[-3000:]}")


# What they say --------------------------------------------------------------------------------------------


def median(rounds: list[Seen]) -> Seen:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def rounded(seen: Seen) -> Seen:
    return {name: round(value, 2) for name, value in seen.items()}


def too_far(medians: dict[str, Seen]) -> list[str]:
    ratios = {(tool, name): seen[name] / medians[OURS][name] for tool, seen in medians.items() for name in FIGURES}
    return [
        f"{tool}: {name} is {of_ours:.3f} of ours, the bar is 1 ± {BAR}"
        for (tool, name), of_ours in ratios.items()
        if abs(of_ours - 1) > BAR
    ]
