"""vLLM with drafts of its own and with ours (specmesh/vllm), side by side under the load harness (bench/served.py).

    python -m bench vllm_drafter --vllm VENV [--sides off,suffix,cold] [--workloads edit,agent] [--concurrency 1,4]

Every side is a vLLM of its own, and they take turns. `cold`: ours, whose proposer has learned nothing. `warm`: ours,
which has answered the same requests before and was then started again, proposer and all, with its store on disk. That
no model answers come with the proposer is part of both. vLLM is started without specmesh's rooms on its path, as it is
where specmesh is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir

HELP = "vLLM without drafts, with its own and with ours, served side by side"
OURS = {"method": "custom_class", "model": "specmesh.vllm.Drafter"}
SIDES: dict[str, dict[str, Any]] = {
    "off": {},
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    "cold": OURS,
    "warm": OURS,
}
START_S, STOP_S = 400.0, 30.0
# Of vLLM's process, by the plugin's line in the log.
STEP = re.compile(r"a step took ([\d.]+) ms here, of which ([\d.]+) ms it waited")
SHOWN = (
    Shown("vLLM with its own drafts and with ours", "chat|edit|agent|agentic>*",
          {"tokens_per_s": "tokens/s", "of_first>ratio&of_first>low&of_first>high": "of the first (95 %)",
           "accepted_per_step": "accepted a step", "failed": "failed"},
          "All get the same requests in turns. Named by the kind of request, streams and side.",
          named=("concurrency", "server")),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vllm", required=True, type=Path, metavar="VENV", help="environment that has vllm")
    parser.add_argument("--sides", default=",".join(SIDES), help="of " + ", ".join(SIDES))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--tokens", type=int, default=128, help="longest answer")
    parser.add_argument("--draft-tokens", type=int, default=16, help="num_speculative_tokens of every side")
    parser.add_argument("--eager", action="store_true", help="vLLM compiles nothing: it starts sooner and is slower")
    parser.add_argument("--debug", action="store_true", help="compare every row with the text it is taken for")
    served.flags(parser)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    command = options.vllm / "bin" / "vllm"
    if not command.is_file():
        raise SystemExit(f"no {command}")
    names = options.sides.split(",")
    if unknown := set(names) - SIDES.keys():
        raise SystemExit(f"no side {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    model = ensure_model(options.model, cache_dir(Settings.for_tests()))
    with tempfile.TemporaryDirectory(prefix="vllm-drafter-") as place, ExitStack() as stack:
        folder = Path(place)
        make_path(folder)
        if "warm" in names:
            teach(folder, command, model, options)
        urls = {name: stack.enter_context(side(name, folder, command, model, options)) for name in names}
        options.served = [f"label={name};url={url};model=m" for name, url in urls.items()]
        figures = served.measure(options)
        figures["step_ms"] = {name: found for name in names if (found := step_ms(folder / f"{name}.log"))}
    return {"vllm": version(options.vllm), "sides": names, "dtype": options.dtype, "eager": options.eager} | figures


def make_path(folder: Path) -> None:
    """The package alone: its neighbours in a checkout have the names of others' packages."""
    (folder / "path").mkdir()
    (folder / "path" / "specmesh").symlink_to(ROOT / "specmesh")


def teach(folder: Path, command: Path, model: Path, options: argparse.Namespace) -> None:
    """What `warm` answered before."""
    with side("warm", folder, command, model, options) as url:
        for name in options.workloads.split(","):
            for streams in map(int, options.concurrency.split(",")):
                subprocess.run([sys.executable, *lesson(name, streams, url, options)], cwd=ROOT, check=True)


def lesson(name: str, streams: int, url: str, options: argparse.Namespace) -> list[str]:
    """The requests that the sides get, to one server."""
    words = served.command(name, streams, options)
    return [*words[: words.index("--ab")], "--url", url, "--model", "m"]


@contextmanager
def side(name: str, folder: Path, command: Path, model: Path, options: argparse.Namespace) -> Iterator[str]:
    """Its URL."""
    with ExitStack() as stack:
        if SIDES[name] is OURS:
            stack.enter_context(proposer(name, folder))
        yield stack.enter_context(engine(name, folder, command, model, options))


@contextmanager
def engine(name: str, folder: Path, command: Path, model: Path, options: argparse.Namespace) -> Iterator[str]:
    """vLLM; its URL."""
    more = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder / "path"), "SPECMESH_RUN_DIR": str(folder / f"run-{name}"),
        "DRAFTS_DEBUG": str(int(options.debug)),
    }  # fmt: skip
    # vLLM asks for Intel's OpenMP, which its CPU wheel brings along, wherever it drafts.
    if (library := command.parents[1] / "lib" / "libiomp5.so").is_file():
        more["LD_PRELOAD"] = str(library)
    port = free_ports(1)
    words = [
        command, "serve", model, "--served-model-name", "m", "--dtype", options.dtype, "--max-model-len", "4096",
        "--max-num-seqs", "32", *["--enforce-eager"] * options.eager, "--host", "127.0.0.1", "--port", port,
    ]  # fmt: skip
    if config := SIDES[name]:
        words += ["--speculative-config", json.dumps(config | {"num_speculative_tokens": options.draft_tokens})]
    url = f"http://127.0.0.1:{port}"
    with running(list(map(str, words)), folder / f"{name}.log", more, f"{url}/health"):
        yield url


@contextmanager
def proposer(name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process that was started; the one that drafts is its child."""
    port = free_ports(1)
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


def step_ms(log: Path) -> dict[str, float]:
    """Of a side with our drafts: how long a step took in vLLM's thread, and how much of it it waited; {}: not said."""
    found = STEP.findall(log.read_text(errors="replace"))
    return {"whole": float(found[-1][0]), "waited": float(found[-1][1])} if found else {}


def version(environment: Path) -> str:
    """Of vLLM there."""
    folders = [str(each) for each in environment.glob("lib/python3*/site-packages")]
    names = ("vllm", "vllm-cpu")
    return next((each.version for name in names for each in metadata.distributions(name=name, path=folders)), "")
