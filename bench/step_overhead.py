"""What the mesh adds to one step of one stream: time between tokens over HTTP minus the runner's own step.

The mock engine sleeps a known time per step. In process its `step` is called in a loop, nothing around it;
over HTTP the same step happens behind scheduler, proposer, bus, streamer and SSE. Both in one run.
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

from bench.running_mesh import ROOT, running_mesh
from services.messages import Generate, Sampling
from services.target.events import Arrived, RunStep, StepDone, StepWanted
from services.target.limits import Limits
from services.target.mock_runner import MockRunner, Profile
from services.target.scheduler import Scheduler

HELP = "milliseconds the mesh adds to a step of a single stream, against the same runner in process"
BAR_MS = 1.0


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step-ms", type=float, default=5.0, help="of the mock engine")
    parser.add_argument("--tokens", type=int, default=600)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    profile = {"step_ms": options.step_ms, "row_us": 0, "acceptance": 0.0, "vocab_size": 49152}
    alone = in_process(profile, options.tokens)
    figures: dict[str, Any] = {"step_ms": options.step_ms, "in_process_p50_ms": alone, "missed": []}
    with running_mesh(engine="mock", mock_profile=json.dumps(profile)) as mesh:
        for method in ("naive", "ngram"):
            seen = _single_stream(mesh.url, method, options.tokens)
            added = seen["itl_s"]["p50"] * 1e3 - alone
            figures[method] = {
                "itl_p50_ms": seen["itl_s"]["p50"] * 1e3,
                "itl_p99_ms": seen["itl_s"]["p99"] * 1e3,
                "added_p50_ms": added,
                "tokens_per_chunk": seen["tokens"]["per_chunk"],
            }
            if added > BAR_MS:
                figures["missed"].append(f"{method}: adds {added:.2f} ms a step, the bar is {BAR_MS}")
    return figures


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
