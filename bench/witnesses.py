"""Other people's load tools beside ours: GuideLLM, AIPerf and `specmesh load` on one closed loop against one server.

    python -m bench.witnesses --guidellm VENV --aiperf VENV [--engine torch | --url URL]

Both tools live in virtual environments of their own, given by path (`pip install guidellm`, `pip install aiperf`);
neither is a dependency. They get the same prompts, the same limits and a folder with the model's tokenizer: nothing
is fetched. The tools take turns, `--rounds` of them, so that what disturbs the machine disturbs all; a figure is the
median of its rounds, and a ratio that of two tools' medians. Each tool's first round isn't kept: it warms the server's
caches and the disk's. A mesh is started without drafts (a chunk is a token then, mostly), and with the mock engine
unless said otherwise: this is about figures, and its steps last what they are told to.

What they mean by the same words, all of it from the times at which chunks with text came:

ttft          ours: from when a caller's request was due, which in a closed loop is when its last answer ended. AIPerf:
              from before the request goes to the connection pool. GuideLLM: from the first byte of its header. The
              frame that only names a role counts for none of them.
tpot          (last chunk - first chunk) / (tokens - 1), of each request; both call it inter-token latency.
tokens_per_s  ours and AIPerf: all tokens / (last end - first start). GuideLLM spreads each request's tokens evenly
              between its first and last chunk, and weighs rates with the time they lasted: the same mean.

What is left differs because the tools do: a caller that takes 20 ms to ask again leaves the server that much idler, and
its request arrives elsewhere in the server's step. So first tokens are compared where they take many steps (`--workload
long-prompt`, in pieces of `--piece` tokens, nothing cached), and answers are long beside what a tool needs between two.
There is one caller unless said otherwise: several with answers of one length end in one step and queue with their next
prompts, and the median of their first tokens jumps from place to place in that queue.
`turnaround_ms` is that time, of the tools that keep the times of each request.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench import rows
from bench.running_mesh import ROOT, running_mesh
from loadtest.workloads import workload
from loadtest.workloads.session import as_completion

MODEL = "smollm2-135m-instruct"
BAR = 0.05
FIGURES = ("ttft_p50_ms", "ttft_mean_ms", "tpot_p50_ms", "tpot_mean_ms", "tokens_per_s")
PROFILE = {"step_ms": 5, "row_us": 200, "vocab_size": 49152}
OURS = "specmesh load"

Seen = dict[str, float]


def main(argv: list[str]) -> int:
    options = flags().parse_args(argv)
    tools = {OURS: ours}
    tools |= {"GuideLLM": guidellm} if options.guidellm else {}
    tools |= {"AIPerf": aiperf} if options.aiperf else {}
    seen: dict[str, list[Seen]] = {name: [] for name in tools}
    with tempfile.TemporaryDirectory(prefix="witnesses-") as folder, server(options) as url:
        prepare(Path(folder), options)
        for turn in range(-1, options.rounds):
            for name in rotated(list(tools), turn):
                found = tools[name](Path(folder), url, options)
                print(f"round {turn + 1}, {name}: {json.dumps(rounded(found))}", flush=True)
                if turn >= 0:
                    seen[name].append(found)
    medians = {name: median(each) for name, each in seen.items()}
    print(table(medians))
    missed = too_far(medians)
    print("\n".join(f"MISSED {each}" for each in missed))
    if not options.no_row:
        told_of = {name: getattr(options, name) for name in ("engine", "workload", "concurrency", "requests", "piece")}
        versions = {name: version(name, venv) for name, venv in environments(options).items()}
        rows.append("witnesses", ["witnesses", *argv], {
            **told_of, "versions": versions, "figures": {name: rounded(each) for name, each in medians.items()},
            "rounds_seen": {name: [rounded(one) for one in each] for name, each in seen.items()}, "missed": missed,
        })  # fmt: skip
    return 1 if missed else 0


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.witnesses", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--guidellm", type=Path, metavar="VENV", help="virtual environment that has GuideLLM")
    parser.add_argument("--aiperf", type=Path, metavar="VENV", help="virtual environment that has AIPerf")
    parser.add_argument("--url", default="", help="a server that runs; else a mesh is started")
    parser.add_argument("--model", default=MODEL, help="its name for requests, and of the mesh that is started")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json; else the cache's of the model")
    parser.add_argument("--engine", default="mock", choices=("torch", "mock"), help="of the mesh that is started")
    parser.add_argument("--workload", default="long-prompt", help="one of specmesh load's, each prompt of it once")
    parser.add_argument("--piece", type=int, default=128, help="max_step_tokens of the mesh that is started")
    parser.add_argument("--concurrency", type=int, default=1, help="callers")
    parser.add_argument("--requests", type=int, default=16, help="of each tool in each round")
    parser.add_argument("--max-tokens", type=int, default=192, help="of each answer, exactly")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each tool, after one that isn't kept")
    parser.add_argument("--no-row", action="store_true", help="print only, append nothing to bench/results")
    return parser


@contextlib.contextmanager
def server(options: argparse.Namespace) -> Iterator[str]:
    if options.url:
        yield options.url.rstrip("/")
        return
    settings = {"model": options.model, "method": "naive", "max_step_tokens": options.piece, "prefix_cache": False}
    if options.engine == "mock":
        settings |= {"engine": "mock", "mock_profile": json.dumps(PROFILE)}
    with running_mesh(**settings) as mesh:
        yield mesh.url


def prepare(folder: Path, options: argparse.Namespace) -> None:
    """The same prompts in each tool's form, and the tokenizer at a relative path, which no tool takes for a hub."""
    made = workload(options.workload, 1).session
    prompts = [as_completion(made(index).turns[0].body)["prompt"] for index in range(options.requests)]
    for name, field in (("ours.jsonl", "prompt"), ("guidellm.jsonl", "prompt"), ("aiperf.jsonl", "text")):
        (folder / name).write_text("".join(json.dumps({field: prompt}) + "\n" for prompt in prompts))
    kept = options.tokenizer or tokenizer_of(options.model)
    (folder / "tokenizer").symlink_to(kept.resolve(), target_is_directory=True)


def tokenizer_of(model: str) -> Path:
    cache = Path(os.environ.get("SPECMESH_CACHE_DIR", Path.home() / ".cache" / "specmesh"))
    found = sorted(each.parent for each in cache.rglob("tokenizer.json") if model in str(each).lower())
    if not found:
        raise SystemExit(f"no tokenizer.json of {model} in {cache}: name its folder with --tokenizer")
    return found[0]


# The tools ------------------------------------------------------------------------------------------------


def ours(folder: Path, url: str, options: argparse.Namespace) -> Seen:
    file, records = folder / "ours.json", folder / "records.jsonl"
    told(
        folder, sys.executable, "-m", "loadtest", url, f"--json={file}", "--quiet", "--workload=ours.jsonl",
        "--endpoint=chat", "--ignore-eos", f"--model={options.model}", f"--concurrency={options.concurrency}",
        f"--requests={options.requests}", f"--max-tokens={options.max_tokens}", f"--records={records}",
    )  # fmt: skip
    each = [json.loads(line) for line in records.read_text().splitlines()]
    figures = json.loads(file.read_text())
    return {
        "ttft_p50_ms": figures["ttft_s"]["p50"] * 1e3,
        "ttft_mean_ms": figures["ttft_s"]["mean"] * 1e3,
        "tpot_p50_ms": figures["tpot_s"]["p50"] * 1e3,
        "tpot_mean_ms": figures["tpot_s"]["mean"] * 1e3,
        "tokens_per_s": figures["throughput"]["output_tokens_per_s"],
        "turnaround_ms": turnaround_ms((one["started"], one["ended"]) for one in each),
    }


def guidellm(folder: Path, url: str, options: argparse.Namespace) -> Seen:
    file = folder / "guidellm.json"
    # Usage with every chunk is its own wish; servers that don't know that would refuse all of its requests.
    plain = {"include_usage": True, "continuous_usage_stats": False}
    body = {"stream_options": plain, "ignore_eos": True, "temperature": 0, **limit(options)}
    backend = {
        "kind": "openai_http", "target": url, "model": options.model, "http2": False, "validate_backend": False,
        "request_format": "/v1/chat/completions", "extras": {"body": body},
    }  # fmt: skip
    told(
        folder, options.guidellm / "bin" / "guidellm", "run", "--disable-progress",
        "--backend", json.dumps(backend),
        "--profile", json.dumps({"kind": "concurrent", "streams": [options.concurrency]}),
        "--constraint", json.dumps({"kind": "max_requests", "count": options.requests}),
        "--tokenizer", json.dumps({"kind": "huggingface_auto", "model": "./tokenizer"}),
        "--data", json.dumps({"kind": "json_file", "path": "guidellm.jsonl"}),
        "--output", json.dumps({"kind": "json", "path": str(file)}),
    )  # fmt: skip
    found = json.loads(file.read_text())["benchmarks"][0]
    metrics = found["metrics"]
    if not metrics["time_to_first_token_ms"]["successful"]["count"]:
        raise SystemExit(f"GuideLLM: no request succeeded: {json.dumps(found['requests']['errored'][:1])[:2000]}")
    ttft, itl = (metrics[name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    return {
        "ttft_p50_ms": ttft["median"],
        "ttft_mean_ms": ttft["mean"],
        "tpot_p50_ms": itl["median"],
        "tpot_mean_ms": itl["mean"],
        "tokens_per_s": metrics["output_tokens_per_second"]["successful"]["mean"],
        "turnaround_ms": turnaround_ms(
            (each["request_start_time"], each["request_end_time"]) for each in found["requests"]["successful"]
        ),
    }


def aiperf(folder: Path, url: str, options: argparse.Namespace) -> Seen:
    out = folder / "aiperf"
    extra = {"ignore_eos": True, "temperature": 0, **limit(options)}
    told(
        folder, options.aiperf / "bin" / "aiperf", "profile", "--model", options.model, "--url", url,
        "--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--tokenizer", "./tokenizer",
        "--input-file", "aiperf.jsonl", "--custom-dataset-type", "single_turn",
        "--concurrency", str(options.concurrency), "--request-count", str(options.requests),
        "--extra-inputs", json.dumps(extra), "--output-artifact-dir", str(out), "--ui", "none",
        "--no-gpu-telemetry", "--no-server-metrics",
    )  # fmt: skip
    figures = json.loads(next(out.rglob("profile_export_aiperf.json")).read_text())
    ttft, itl = figures["time_to_first_token"], figures["inter_token_latency"]
    return {
        "ttft_p50_ms": ttft["p50"],
        "ttft_mean_ms": ttft["avg"],
        "tpot_p50_ms": itl["p50"],
        "tpot_mean_ms": itl["avg"],
        "tokens_per_s": figures["output_token_throughput"]["avg"],
    }


def turnaround_ms(spans: Iterable[tuple[float, float]]) -> float:
    """From the end of an answer to the next request, the median: a request follows the earliest end that nobody
    followed yet."""
    ends: list[float] = []
    found: list[float] = []
    for start, end in sorted(spans):
        if ends and ends[0] <= start:
            found.append(start - heapq.heappop(ends))
        heapq.heappush(ends, end)
    return statistics.median(found) * 1e3 if found else 0.0


def environments(options: argparse.Namespace) -> dict[str, Path]:
    return {name: venv for name in ("guidellm", "aiperf") if (venv := getattr(options, name))}


def version(name: str, venv: Path) -> str:
    asked = f"import importlib.metadata as metadata; print(metadata.version({name!r}))"
    return subprocess.run([venv / "bin" / "python", "-c", asked], capture_output=True, text=True).stdout.strip()


def limit(options: argparse.Namespace) -> dict[str, int]:
    return {"max_tokens": options.max_tokens}


def told(folder: Path, *words: str | Path) -> None:
    """Runs a tool in the folder; what it said is shown when it failed. Its packages are its environment's alone. A
    relative tokenizer needs no hub; told to be offline, AIPerf takes its path for a hub's name.
    """
    here = os.environ | {"PYTHONPATH": str(ROOT) if words[0] == sys.executable else ""}
    finished = subprocess.run(
        list(map(str, words)), cwd=folder, env=here, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if finished.returncode:
        raise SystemExit(f"{words[0]} failed:\n{finished.stdout[-3000:]}\n{finished.stderr[-3000:]}")


# What they say --------------------------------------------------------------------------------------------


def rotated(names: list[str], by: int) -> list[str]:
    at = by % len(names)
    return [*names[at:], *names[:at]]


def median(rows: list[Seen]) -> Seen:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def rounded(seen: Seen) -> Seen:
    return {name: round(value, 2) for name, value in seen.items()}


def table(medians: dict[str, Seen]) -> str:
    """Each tool's figures, and what they are of ours."""
    lines = [f"{'':<16}" + "".join(f"{name:>24}" for name in FIGURES)]
    for tool, row in medians.items():
        cells = (f"{row[name]:,.2f} ({row[name] / medians[OURS][name]:.3f})" for name in FIGURES)
        lines.append(f"{tool:<16}" + "".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)


def too_far(medians: dict[str, Seen]) -> list[str]:
    told = []
    for tool, row in medians.items():
        for name in FIGURES:
            of_ours = row[name] / medians[OURS][name]
            if abs(of_ours - 1) > BAR:
                told.append(f"{tool}: {name} is {of_ours:.3f} of ours, the bar is 1 ± {BAR}")
    return told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
