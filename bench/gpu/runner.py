"""Whole answers on the GPU through the worker's runner, verification included, without mesh: tokens per second by
sequences at a time. Without drafts; the same with each step launched before the last one has ended; with prompt lookup;
and with drafts that are always right (the most there is).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench.gpu import in_process, law3, stage
from bench.gpu.in_process import GpuAnswers, InProcess
from bench.shown import Shown
from kernels import launch

HELP = "answers in process on the GPU: tokens per second with and without drafts, by sequences at a time"
AT_ONCE, TOKENS, PROMPT = (1, 16, 64), 200, 128
SHOWN = (
    Shown("Answers in process on the GPU", "* at once>*",
          {"tokens_per_s": "tokens/s", "tokens_per_step": "tokens a step"}),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    stage.flags(parser)
    parser.add_argument("--model", default="", help="a folder; otherwise SmolLM2, with random weights where it isn't")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures = stage.begun(options, stage.device(options))
    at_once, tokens = ((2,), 3) if options.dry_run else (AT_ONCE, TOKENS)
    with tempfile.TemporaryDirectory(prefix="runner-") as scratch:
        place, figures["weights"] = law3.model_folder(Path(scratch), options)
        if options.model:
            place, figures["weights"] = Path(options.model), Path(options.model).name
        loop = in_process.load(place, kv_cache_mb=4096)
        figures["path"] = loop.runner.facts.path
        ready = launch.compiled_late()
        for count in at_once:
            figures[f"{count} at once"] = found = spoken(loop, count, tokens, 8 if options.dry_run else PROMPT)
            print(f"-- {count} at once: {found}", flush=True)
        figures["compiled_late"] = launch.compiled_late() - ready
    return figures | {"missed": missed(figures)}


def missed(figures: dict[str, Any]) -> list[str]:
    late = figures["compiled_late"]
    return [f"{late} kernels were compiled after the runner was ready"] if late else []


def spoken(loop: InProcess, count: int, tokens: int, prompt: int) -> dict[str, Any]:
    asked = law3.prompts(loop.runner.facts.vocab_size, (prompt,) * count)
    # The first one warms up.
    plain = [loop.generate(asked, tokens) for _ in range(2)][-1]
    ahead = [loop.generate_ahead(asked, tokens) for _ in range(2)][-1]
    ways = {"no drafts": plain, "launched ahead": ahead}
    ways["prompt lookup"] = loop.generate(asked, tokens, in_process.looked_up(4))
    ways["right drafts of 4"] = loop.generate(asked, tokens, in_process.known(plain.texts, asked, 4))
    return {way: told(answers) for way, answers in ways.items()}


def told(answers: GpuAnswers) -> dict[str, Any]:
    step_ms = [seconds * 1e3 for seconds in answers.step_seconds]
    return {
        "tokens_per_s": round(answers.tokens_per_second, 1),
        "tokens_per_step": round(sum(map(len, answers.texts)) / len(answers.texts) / max(1, answers.steps), 2),
        "step_p50_ms": round(statistics.median(step_ms), 3),
    }
