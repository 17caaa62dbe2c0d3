"""Law 3 at load: is the text of many requests the same alone, in a batch, cut anyhow, preempted and drafted?

Each way runs all requests through scheduler and model, without sockets. Texts are compared token by token with
those of the first way; a single difference is a miss.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from typing import Any

from bench.shown import Shown
from models.sources import ensure_model
from services.api.drafter import Draft
from services.api.messages import Generate
from services.api.sampling import Sampling
from services.api.settings import Settings, cache_dir
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_runner import TorchRunner
from services.worker.scheduling.events import Arrived, Emit, Fail, Finish, Output, StepDone
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence

HELP = "the same text alone, in a batch, in chunks of 64 and 512, preempted and drafted: 200 requests"
# Name -> what the scheduler is allowed. Pages: 0 for all there are.
WAYS: dict[str, dict[str, int]] = {
    "alone": {"max_sequences": 1},
    "batch of 16": {"max_sequences": 16},
    "chunks of 64": {"max_sequences": 16, "max_step_tokens": 64},
    "chunks of 512": {"max_sequences": 16, "max_step_tokens": 512},
    "preempted": {"max_sequences": 16, "pages": 160},
    "drafted": {"max_sequences": 16, "drafts": 1},
}
PAGE_TOKENS = 32
SHOWN = (
    Shown("The same text in every way", "ways>*",
          {"differ": "texts that differ"},
          by=("dtype",)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ran:
    texts: list[list[int]]
    seconds: float
    preemptions: int
    accepted: int
    cached_tokens: int


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name, folder, GGUF file or hub id")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "int8"))
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--least", type=int, default=256, help="new tokens, at least")
    parser.add_argument("--most", type=int, default=512, help="new tokens, at most")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    folder = ensure_model(options.model, cache_dir(Settings.for_tests()))
    model = load_torch_model(
        folder, Wanted(dtype=options.dtype, page_tokens=PAGE_TOKENS, kv_cache_mb=1024, max_context=2048)
    )
    runner = TorchRunner(model)
    wanted = requests(options.requests, options.least, options.most)
    figures: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "path": model.facts.path,
        "requests": len(wanted),
        "tokens": sum(each.sampling.max_tokens for each in wanted),
        "ways": {},
        "missed": [],
    }
    first: Ran | None = None
    for name, allowed in WAYS.items():
        ran = run(runner, wanted, **allowed)
        first = first or ran
        differ = sum(a != b for a, b in zip(first.texts, ran.texts, strict=True))
        figures["ways"][name] = {
            "differ": differ,
            "tokens_per_second": round(sum(map(len, ran.texts)) / ran.seconds, 1),
            "preemptions": ran.preemptions,
            "accepted_drafts": ran.accepted,
            "cached_tokens": ran.cached_tokens,
        }
        print(name, figures["ways"][name], flush=True)
        if differ:
            figures["missed"].append(f"{name}: {differ} of {len(wanted)} texts differ")
    return figures


def requests(count: int, least: int, most: int) -> list[Generate]:
    """Half greedy, half sampled with a seed; prompts of 8 to 700 tokens, half of each repeated."""
    chance = random.Random(3)
    found = []
    for index in range(count):
        half = [chance.randrange(200, 40000) for _ in range(chance.randrange(4, 350))]
        sampling: dict[str, Any] = {"max_tokens": chance.randint(least, most), "ignore_eos": True}
        if index % 2:
            sampling |= {"temperature": 0.8, "seed": index, "top_p": (1.0, 0.9)[index // 2 % 2]}
        prompt = half + half
        asked = {"request_id": str(index), "attempt": 0, "token_ids": prompt, "prompt_tokens": len(prompt)}
        found.append(Generate(**asked, sampling=Sampling(**sampling)))
    return found


def run(runner: TorchRunner, wanted: list[Generate], pages: int = 0, drafts: int = 0, **limits: int) -> Ran:
    facts = runner.facts
    method = "ngram" if drafts else "naive"
    limited = limits_of(facts, pages=pages or facts.pages, max_waiting=len(wanted), method=method, **limits)
    scheduler = Scheduler(limited)
    texts: list[list[int]] = [[] for _ in wanted]
    cached = 0

    def hear(out: list[Output]) -> None:
        nonlocal cached
        for item in out:
            if isinstance(item, Emit):
                texts[item.stream] += item.tokens.ids
            elif isinstance(item, Finish):
                cached += item.finished.cached_tokens
            elif isinstance(item, Fail):
                raise SystemExit(f"request {item.stream} failed: {item.failed.message}")

    begin = time.perf_counter()
    for stream, generate in enumerate(wanted):
        hear(scheduler.handle(Arrived(generate, stream)))
    while scheduler.has_work:
        plan = scheduler.schedule()
        drafting = [item.sequence for item in plan.items if item.drafts]
        runner.launch(scheduler.place({sequence.id: repeated(sequence) for sequence in drafting}))
        hear(scheduler.handle(StepDone(runner.finish())))
    scheduler.check_idle()
    accepted = sum(tally.accepted for tally in scheduler.tallies.values())
    return Ran(texts, time.perf_counter() - begin, scheduler.preemptions, accepted, cached)


def repeated(sequence: Sequence) -> Draft:
    """What followed the last two tokens when they came before; else a token that is likely wrong."""
    text, budget = sequence.token_ids, sequence.longest_draft
    guess = [text[0]]
    for start in range(len(text) - 3, max(-1, len(text) - 400), -1):
        if text[start : start + 2] == text[-2:]:
            guess = text[start + 2 : start + 2 + budget]
            break
    return Draft(guess[:budget], "repeat")
