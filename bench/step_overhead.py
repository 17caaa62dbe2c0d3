"""What the mesh adds to one step of one stream: time between tokens over HTTP minus the runner's own step.

The mock engine sleeps a known time per step. In process its `step` is called in a loop, nothing around it;
over HTTP the same step happens behind scheduler, proposer, bus, streamer and SSE. Both in one run.

And what guessing adds between two steps: a step loop in this process asks the mesh's proposer over ipc, and the time
from the end of a step to the beginning of the next is sorted by how the next one's draft came: left over from an
earlier one (lease), asked for while the step ran (ahead), waited for (asked), or not (none). The same loop without
speculation is the measure; runs of both alternate. Like the thread that drives a GPU this one polls for the end of a
step and doesn't sleep (`--wait sleep`: it does). In turns with that, the same without rehearsals
(rehearsal.py), and what a rehearsal costs a step that it precedes: how much longer steps take than the
runner says. Beside it stands what nothing over ZeroMQ can beat here: the round trip of an empty message between two
processes that do nothing else, as seldom as steps come. And the thread's own work there, in processor time with warm
caches (bench/step_thread.py): what stays of it on a machine without neighbours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from bench.running_mesh import ROOT, running_mesh
from bench.step_thread import PROFILE, Seen, added, between_steps
from mesh.blocking import BlockingLink
from services.api.messages import Generate, Sampling
from services.runtime.process import mesh_codec
from services.worker.running.mock import MockRunner, Profile
from services.worker.scheduling.events import Arrived, RunStep, StepDone, StepWanted
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler

HELP = "milliseconds the mesh adds to a step of a single stream, against the same runner in process"
BAR_MS = 1.0
# Microseconds between two steps that guessing may add, p50, by how the draft came.
BARS_US = {"lease": 20.0, "ahead": 20.0, "asked": 150.0}
ROUNDS = 6
BARE = 300
REHEARSED = {"rehearsed": True, "not rehearsed": False}


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step-ms", type=float, default=5.0, help="of the mock engine")
    parser.add_argument("--tokens", type=int, default=600, help="http: of a request")
    parser.add_argument("--steps", type=int, default=300, help="between: of each run")
    parser.add_argument("--only", choices=("http", "between"), help="one half of it")
    parser.add_argument("--wait", choices=("poll", "sleep"), default="poll", help="between: for the end of a step")
    parser.add_argument("--methods", default="suffix,auto", help="whose steps are looked between")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"step_ms": options.step_ms, "missed": []}
    if options.only != "between":
        _over_http(options, figures)
    if options.only != "http":
        _between_steps(options, figures)
        _of_the_thread(options, figures)
    return figures


def _over_http(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    profile = {"step_ms": options.step_ms, "row_us": 0, "acceptance": 0.0, "vocab_size": 49152}
    alone = figures["in_process_p50_ms"] = in_process(profile, options.tokens)
    with running_mesh(engine="mock", mock_profile=json.dumps(profile)) as mesh:
        for method in ("naive", "ngram"):
            seen = _single_stream(mesh.url, method, options.tokens)
            added = seen["chunk_gap_s"]["p50"] * 1e3 - alone
            figures[method] = {
                "itl_p50_ms": seen["chunk_gap_s"]["p50"] * 1e3,
                "itl_p99_ms": seen["chunk_gap_s"]["p99"] * 1e3,
                "added_p50_ms": added,
                "tokens_per_chunk": seen["tokens"]["per_chunk"],
            }
            if added > BAR_MS:
                figures["missed"].append(f"{method}: adds {added:.2f} ms a step, the bar is {BAR_MS}")


def _between_steps(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="run-") as folder, running_mesh(engine="mock", run_dir=folder) as mesh:
        [socket] = Path(folder).rglob("proposer*.sock")
        # The mesh's own target asks, too, so that all its processes are awake.
        _single_stream(mesh.url, "suffix", 50)
        seen: dict[bool, dict[str, Seen]] = {True: {}, False: {}}
        for each in range(ROUNDS):
            for method in ["naive", *options.methods.split(",")]:
                for rehearsed in (True, False):
                    found = _seen(f"ipc://{socket}", method, options, each, rehearsed)
                    seen[rehearsed].setdefault(method, Seen()).add(found)
    bare = _bare_round_trip(options.step_ms / 1e3)
    told = figures["between_steps_us"] = _told(seen[True])
    told["bare round trip"] = {"p50": float(np.median(bare) * 1e6)}
    figures["without_rehearsals_us"] = _told(seen[False])
    figures["steps_longer_us"] = {
        name: {method: _percentiles(each.longer, 50, 90, 99) for method, each in seen[rehearsed].items()}
        for name, rehearsed in REHEARSED.items()
    }
    for method in options.methods.split(","):
        for way, bar in BARS_US.items():
            if (more := told[method].get(way, {}).get("added_p50", 0.0)) > bar:
                figures["missed"].append(f"{method}, {way}: adds {more:.0f} us, the bar is {bar:g}")


def _told(seen: dict[str, Seen]) -> dict[str, Any]:
    """Between two steps: microseconds by method, and by how drafts came."""
    plain = seen["naive"].between["none"]
    p50 = float(np.median(plain) * 1e6)
    told: dict[str, Any] = {"naive": {"p50": p50, "steps": len(plain)}}
    for method, of_it in seen.items():
        if method != "naive":
            told[method] = {way: _percentiles(each, 50, 90) for way, each in of_it.between.items()}
            for way, figures in told[method].items():
                figures |= {"added_p50": figures["p50"] - p50, "steps": len(of_it.between[way])}
    return told


def _percentiles(seconds: list[float], *wanted: int) -> dict[str, float]:
    found = np.percentile(np.array(seconds) * 1e6, wanted)
    return {f"p{each}": float(value) for each, value in zip(wanted, found, strict=True)}


def _of_the_thread(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    methods = options.methods.split(",")
    found = figures["step_thread_cpu_us"] = added(methods)
    for method in methods:
        for way in ("lease", "ahead"):
            more = found[method].get(way, {}).get("added_p50", 0.0)
            if more > BARS_US[way]:
                told = f"{method}, {way}: {more:.0f} us of processor time, the bar is {BARS_US[way]:g}"
                figures["missed"].append(told)


ECHO = """
import sys, zmq
socket = zmq.Context().socket(zmq.ROUTER)
socket.bind(sys.argv[1])
while (frames := socket.recv_multipart())[1] != b"end":
    socket.send_multipart(frames)
"""


def _bare_round_trip(pause: float) -> list[float]:
    """Seconds, of a message to another process and back, with this pause before each."""
    with tempfile.TemporaryDirectory(prefix="echo-") as folder, zmq.Context() as context:
        endpoint = f"ipc://{folder}/socket"
        with subprocess.Popen([sys.executable, "-c", ECHO, endpoint]), context.socket(zmq.DEALER) as socket:
            socket.connect(endpoint)
            took = []
            for _ in range(BARE):
                time.sleep(pause)
                began = time.perf_counter()
                socket.send(b"")
                socket.recv()
                took.append(time.perf_counter() - began)
            socket.send(b"end")
    return took[1:]


def _poll(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _seen(endpoint: str, method: str, options: argparse.Namespace, seed: int, rehearsed: bool) -> Seen:
    """The steps of one stream."""
    profile = PROFILE | {"step_ms": options.step_ms, "seed": seed}
    runner = MockRunner(Profile.parse(profile), sleep=_poll if options.wait == "poll" else time.sleep)

    def connect(name: str, epoch: int) -> BlockingLink:
        return BlockingLink(endpoint, "proposer", mesh_codec(), name, epoch)

    return between_steps(runner, connect, endpoint, method, options.steps, rehearsed=rehearsed)


def in_process(profile: dict[str, Any], steps: int) -> float:
    """p50 of the runner's step with one sequence of one row, in milliseconds."""
    runner = MockRunner(Profile.parse(profile))
    facts = runner.facts
    scheduler = Scheduler(
        Limits(facts.vocab_size, facts.max_context, facts.eos_token_ids, facts.page_tokens, facts.pages)
    )
    sampling = Sampling(max_tokens=steps, ignore_eos=True)
    generate = Generate(request_id="r", attempt=0, token_ids=[100, 101], prompt_tokens=2, sampling=sampling)
    scheduler.handle(Arrived(generate, 1))
    took = []
    while scheduler.has_work:
        (step,) = (each for each in scheduler.handle(StepWanted()) if isinstance(each, RunStep))
        begin = time.perf_counter()
        verdicts = runner.step(step.work)
        took.append(time.perf_counter() - begin)
        scheduler.handle(StepDone(verdicts))
    return float(np.median(took) * 1e3)


def _single_stream(url: str, method: str, tokens: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        file = Path(folder) / "figures.json"
        command = [
            sys.executable, "-m", "loadtest", url, f"--json={file}", "--quiet", "--ignore-eos",
            "--requests=3", "--warmup=1", f"--max-tokens={tokens}", "--speculation=" + json.dumps({"method": method}),
        ]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return dict(json.loads(file.read_text()))
