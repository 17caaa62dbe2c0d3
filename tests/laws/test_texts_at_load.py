"""Law 3 at load: the text of many requests of the real model is the same alone, in a batch, cut anyhow, preempted and
drafted. Each way runs all requests through scheduler and model, without sockets.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from models.sources import ensure_model
from services.api.drafter import Draft
from services.api.messages import Generate
from services.api.sampling import Sampling
from services.api.settings import Settings, cache_dir
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_runner import TorchRunner
from services.worker.scheduling.events import Arrived, Emit, Fail, Output, StepDone
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence

# Name -> what the scheduler is allowed. Pages: 0 for all there are.
WAYS: dict[str, dict[str, int]] = {
    "alone": {"max_sequences": 1},
    "batch of 16": {"max_sequences": 16},
    "chunks of 64": {"max_sequences": 16, "max_step_tokens": 64},
    "chunks of 512": {"max_sequences": 16, "max_step_tokens": 512},
    "preempted": {"max_sequences": 16, "pages": 120},
    "drafted": {"max_sequences": 16, "drafts": 1},
}
PAGE_TOKENS, REQUESTS = 32, 32


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_no_text_of_many_requests_depends_on_how_they_are_run(dtype: str) -> None:
    folder = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()))
    wanted = Wanted(dtype=dtype, page_tokens=PAGE_TOKENS, kv_cache_mb=1024, max_context=2048)
    runner = TorchRunner(load_torch_model(folder, wanted))
    asked = requests(REQUESTS)
    alone, _ = run(runner, asked, **WAYS["alone"])
    for name, allowed in WAYS.items():
        texts, scheduler = run(runner, asked, **allowed)
        assert [number for number, text in enumerate(texts) if text != alone[number]] == [], name
        # Each way is what it says.
        assert (scheduler.preemptions > 0) == (name == "preempted")
        assert (sum(tally.accepted for tally in scheduler.tallies.values()) > 0) == (name == "drafted")


def requests(count: int) -> list[Generate]:
    """Half greedy, half sampled with a seed; prompts of 8 to 700 tokens, half of each repeated."""
    chance = random.Random(3)
    found = []
    for index in range(count):
        half = [chance.randrange(200, 40000) for _ in range(chance.randrange(4, 350))]
        sampling: dict[str, Any] = {"max_tokens": chance.randint(96, 192), "ignore_eos": True}
        if index % 2:
            sampling |= {"temperature": 0.8, "seed": index, "top_p": (1.0, 0.9)[index // 2 % 2]}
        prompt = half + half
        asked = {"request_id": str(index), "attempt": 0, "token_ids": prompt, "prompt_tokens": len(prompt)}
        found.append(Generate(**asked, sampling=Sampling(**sampling)))
    return found


def run(
    runner: TorchRunner, wanted: list[Generate], pages: int = 0, drafts: int = 0, **limits: int
) -> tuple[list[list[int]], Scheduler]:
    facts = runner.facts
    method = "ngram" if drafts else "naive"
    limited = limits_of(facts, pages=pages or facts.pages, max_waiting=len(wanted), method=method, **limits)
    scheduler = Scheduler(limited)
    texts: list[list[int]] = [[] for _ in wanted]

    def hear(out: list[Output]) -> None:
        for item in out:
            if isinstance(item, Emit):
                texts[item.sequence_id] += item.tokens.ids
            assert not isinstance(item, Fail), item

    for sequence_id, generate in enumerate(wanted):
        hear(scheduler.handle(Arrived(generate, sequence_id)))
    while scheduler.has_work:
        plan = scheduler.schedule()
        drafting = [item.sequence for item in plan.items if item.drafts]
        runner.launch(scheduler.place({sequence.sequence_id: repeated(sequence) for sequence in drafting}))
        hear(scheduler.handle(StepDone(runner.finish())))
    scheduler.check_idle()
    return texts, scheduler


def repeated(sequence: Sequence) -> Draft:
    """What followed the last two tokens when they came before; else a token that is likely wrong."""
    text, budget = sequence.token_ids, sequence.longest_draft
    guess = [text[0]]
    for start in range(len(text) - 3, max(-1, len(text) - 400), -1):
        if text[start : start + 2] == text[-2:]:
            guess = text[start + 2 : start + 2 + budget]
            break
    return Draft(guess[:budget], "repeat")
