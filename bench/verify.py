"""Deciding what stands of a draft, beside the step that it belongs to.

CPU: the compiled loops (kernels/verify/cpu.py) on one thread, on SmolLM2's own logits as they come out of a step, after
that very step, which has left nothing of them in the nearer caches. Every draft stands to its end, so every row is
looked at: the upper bound for a step with this number of rows.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from bench.shown import Shown
from kernels.verify import cpu
from kernels.verify.questions import REJECTION, Asked, Questions, Rule, gather
from models.batch import Stretch
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel

HELP = "microseconds of verify by rows and kind, against the step of as many rows"
ROWS = (1, 4, 8, 16, 64)
CONTEXT = 300
PAGE_TOKENS = 32
BAR_ROWS, BAR_SHARE = 8, 0.05
# What few sequences cost Python, whatever their rows.
BAR_CALL_US = 15.0

_SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 20}
RULES = {
    "greedy": Rule(),
    "target_match": Rule(**_SAMPLED),
    "top_p": Rule(**_SAMPLED, top_p=0.95),
    "top_k, top_p, min_p": Rule(**_SAMPLED, top_k=50, top_p=0.95, min_p=0.01),
    "penalties": Rule(**_SAMPLED, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1),
    "rejection": Rule(**_SAMPLED, strategy=REJECTION),
    "greedy, logprobs": Rule(),
}
SHOWN = (
    Shown("Verifying a draft, share of its step in bfloat16", "bfloat16>verify>*",
          {"rows 8>share:.1%": "rows 8", "rows 64>share:.1%": "rows 64"},
          "Every draft is accepted to its end, so every row is looked at."),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name, folder, GGUF file or hub id")
    parser.add_argument("--turns", type=int, default=15, help="steps of each kind and row count")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"model": options.model, "call_us": _call_us(), "missed": []}
    if figures["call_us"] > BAR_CALL_US:
        figures["missed"].append(f"a call takes {figures['call_us']} us, the bar is {BAR_CALL_US}")
    for dtype in ("bfloat16", "int8"):
        figures[dtype] = _beside_steps(options, dtype)
        gc.collect()
        for name, of_rows in figures[dtype]["verify"].items():
            share = of_rows[f"rows {BAR_ROWS}"]["share"]
            if share > BAR_SHARE:
                figures["missed"].append(f"{name} of {BAR_ROWS} rows: {share:.3f} of a {dtype} step, not {BAR_SHARE}")
    return figures


def _call_us() -> float:
    """A call that has next to nothing to do."""
    logits, questions = torch.zeros(1, 8), gather([Asked(Rule())], 8)
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        cpu.verify(logits, questions)
        times.append((time.perf_counter() - start) * 1e6)
    return round(statistics.median(times), 1)


@dataclass(frozen=True, slots=True)
class VerifyCase:
    """One kind of question about so many rows of a step."""

    name: str
    step: Stretch
    questions: Questions
    logprobs: bool

    def run(self, logits: torch.Tensor) -> int:
        """How many drafted tokens stood."""
        answers = cpu.verify(logits, self.questions)
        if self.logprobs:
            cpu.logprobs(logits, answers.rows, answers.tokens, 5)
        return int(answers.accepted[0])


def _beside_steps(options: argparse.Namespace, dtype: str) -> dict[str, Any]:
    folder = ensure_model(options.model, cache_dir(Settings.for_tests()))
    model = load_torch_model(folder, Wanted(dtype=dtype, page_tokens=PAGE_TOKENS, kv_cache_mb=256))
    pages = list(range(-(-(CONTEXT + max(ROWS)) // PAGE_TOKENS)))
    text = _own_text(model, pages)
    steps = {rows: Stretch(text[CONTEXT : CONTEXT + rows], CONTEXT, pages, 0) for rows in ROWS}
    works = [_work(model, name, steps[rows], Counter(text[:CONTEXT])) for rows in ROWS for name in RULES]
    step_ms, verify_us = _take_turns(model, works, options.turns)
    figures: dict[str, Any] = {"path": model.facts.path, "verify": {}}
    figures["step_ms"] = {f"rows {rows}": step_ms[rows] for rows in ROWS}
    for work in works:
        rows = len(work.step.tokens)
        logits = model.forward([work.step]).logits.clone()
        figures["verify"].setdefault(work.name, {})[f"rows {rows}"] = {
            "us": round(verify_us[work.name, rows], 1),
            "share": round(verify_us[work.name, rows] / 1e3 / step_ms[rows], 4),
            "accepted": work.run(logits),
        }
    return figures


def _own_text(model: TorchModel, pages: list[int]) -> list[int]:
    """What the model says at temperature 1, so that the logits are those of a text."""
    text = [1]
    while len(text) < CONTEXT + max(ROWS):
        logits = model.forward([Stretch(text[-1:], len(text) - 1, pages, 0)]).logits
        rule = Rule(temperature=1.0, seed=4)
        text.append(int(cpu.verify(logits, gather([Asked(rule, len(text))], logits.shape[1])).tokens[0]))
    return text


def _work(model: TorchModel, name: str, step: Stretch, counts: Counter[int]) -> VerifyCase:
    """With a draft that stands to its end: what the rows choose, one after the other."""
    logits, rule = model.forward([step]).logits.clone(), RULES[name]
    seen = dict(counts) if rule.penalised else None
    size = logits.shape[1]

    def asked(draft: list[int]) -> Asked:
        # As a drafter that thinks what the target thinks.
        probs = [torch.softmax(row, -1) for row in logits[: len(draft)]] if rule.strategy == REJECTION else ()
        return Asked(rule, CONTEXT + 1, draft, seen=seen, draft_probs=probs)

    draft: list[int] = []
    while len(draft) < len(step.tokens) - 1:
        answers = cpu.verify(logits, gather([asked(draft)], size))
        draft = answers.tokens[: int(answers.accepted[0]) + 1].tolist()
    return VerifyCase(name, step, gather([asked(draft)], size), "logprobs" in name)


def _take_turns(
    model: TorchModel, works: list[VerifyCase], turns: int
) -> tuple[dict[int, float], dict[tuple[str, int], float]]:
    """Median milliseconds of a step by rows, and microseconds of what follows it by kind and rows."""
    steps: dict[int, list[float]] = {rows: [] for rows in ROWS}
    found: dict[tuple[str, int], list[float]] = {(work.name, len(work.step.tokens)): [] for work in works}
    for turn in range(turns + 2):
        for work in works:
            rows = len(work.step.tokens)
            start = time.perf_counter()
            logits = model.forward([work.step]).logits
            between = time.perf_counter()
            work.run(logits)
            end = time.perf_counter()
            # The first turns fill caches.
            if turn >= 2:
                steps[rows].append((between - start) * 1e3)
                found[work.name, rows].append((end - between) * 1e6)
    medians = {rows: round(statistics.median(times), 3) for rows, times in steps.items()}
    return medians, {key: statistics.median(times) for key, times in found.items()}
