"""Does a head draft the same tokens here as in vLLM? The same folder, greedy, in float32 on both sides, one sequence
after the other; drafts behind the same text are compared token by token.

    python -m bench same_drafts --vllm PYTHON --method eagle3 --draft-model FOLDER --spec-bench question.jsonl
    python -m bench same_drafts --vllm PYTHON --method mtp --family mimo --spec-bench question.jsonl

Which folder that is: bench/oracles/draft_folders.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.held_out import prompts, sources
from bench.oracles.draft_folders import FAMILIES, made
from bench.oracles.other_python import environment
from bench.replay import agreeing
from bench.rows import ROOT
from bench.shown import Shown
from models.sources import ensure_model, read_json
from services.api.methods import METHODS
from services.api.settings import Settings, cache_dir

HELP = "a head's drafts here and in vLLM, token by token (--vllm PYTHON)"
# Shares of equal tokens below which something is computed otherwise, and not only rounded otherwise.
EQUAL_BAR, ACCEPTED_BAR = 0.99, 0.01
LONGEST_PROMPT = 1000
SHOWN = (
    Shown("The same head here and in vLLM", "",
          {"prompts": "prompts", "same_texts": "same texts", "draft_tokens": "draft tokens", "equal_tokens": "equal",
           "accepted_in_vllm": "accepted a draft there", "accepted_here": "here"},
          "One folder, read by both; greedy, float32. Draft tokens behind the same text are compared one by one.",
          by=("method", "family", "weights")),
)  # fmt: skip


@dataclass(slots=True)
class DraftedAnswer:
    """`drafts` by length of the text before them, `seconds` from the prompt to the end."""

    prompt: list[int]
    ids: list[int]
    drafts: dict[int, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def text(self) -> list[int]:
        return self.prompt + self.ids


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vllm", required=True, metavar="PYTHON", help="an interpreter that has vllm")
    parser.add_argument("--method", default="eagle3")
    parser.add_argument("--draft-model", type=Path, metavar="FOLDER", help="a trained head; without it, a random one")
    parser.add_argument("--family", choices=FAMILIES, default="", help="of the model that an MTP block is in")
    parser.add_argument("--random", action="store_true", help="random weights in place of those of --draft-model")
    parser.add_argument("--seed", type=int, default=0, help="of random weights")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--prompts", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--longest", type=int, help="tokens of a draft; else the method's own, or the head's block")
    parser.add_argument("--eager", action="store_true", help="vLLM compiles nothing: it starts sooner and is slower")
    every = "vLLM's MTP blocks read the embedding at position 0, too"
    parser.add_argument("--all-positions", action="store_true", help=every)
    parser.add_argument("--spec-bench", type=Path, required=True, help="Spec-Bench's question.jsonl")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from services.training.prompts import Asking

    folder = ensure_model(options.model, cache_dir(Settings.for_tests()))
    with tempfile.TemporaryDirectory(prefix="same-drafts-") as place:
        model, head = made(
            options.method, options.family, folder, options.draft_model, Path(place), options.seed, options.random
        )
        if options.longest is None:
            options.longest = own_length(options.method, head)
        asking = Asking(folder)
        bodies = prompts("chat", options.prompts, 1, sources(options.spec_bench, None))
        asked = [ids for body in bodies if len(ids := asking.ids(body["messages"][0]["content"])) <= LONGEST_PROMPT]
        version, theirs = in_vllm(model, head, asked, options)
        found = compared(theirs, list(here(model, head, asked, options)))
    weights = "random" if options.random or options.draft_model is None else "trained"
    said = {"vllm": version, "method": options.method, "family": options.family, "weights": weights}
    return said | {"longest": options.longest, "prompts": len(asked)} | found


def own_length(method: str, head: Path) -> int:
    """vLLM takes a longer draft for a longer block, whose tokens are all others."""
    length, block = METHODS[method].length, read_json(head / "config.json").get("block_size")
    return length if block is None else min(length, block - 1)


def in_vllm(
    model: Path, head: Path, asked: list[list[int]], options: argparse.Namespace
) -> tuple[str, list[DraftedAnswer]]:
    job = {"model": str(model), "prompts": asked, "tokens": options.tokens, "eager": options.eager,
           "all_positions": options.all_positions,
           "speculative": speculative_config(options.method, model, head, options.longest),
           "context": LONGEST_PROMPT + options.tokens + 64}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="same-drafts-") as place:
        files = [Path(place) / name for name in ("job.json", "answer.json")]
        files[0].write_text(json.dumps(job))
        command = [options.vllm, "-m", "bench.oracles.vllm_drafts", *map(str, files)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment(options.vllm))
        if done.returncode:
            raise SystemExit(f"{options.vllm} -m bench.oracles.vllm_drafts failed:\n{done.stderr[-2000:]}")
        said = json.loads(files[1].read_text())
    return said["version"], [
        placed(prompt, each["ids"], each["drafts"], each["seconds"])
        for prompt, each in zip(asked, said["answers"], strict=True)
    ]


def speculative_config(method: str, model: Path, head: Path, longest: int) -> dict[str, Any]:
    """What vLLM is told."""
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": longest}
    if method == "block":
        config |= {"method": "eagle3", "parallel_drafting": True}
    # Without a folder an MTP block is the model's own.
    return config if head == model else config | {"model": str(head.resolve())}


def placed(prompt: list[int], ids: list[int], drafts: Sequence[list[int]], seconds: float = 0.0) -> DraftedAnswer:
    """Drafts in their order, which come behind the prompt's first answer token, and then behind what was accepted of
    the last one and the token after it."""
    found = DraftedAnswer(prompt, ids, seconds=seconds)
    at = len(prompt) + 1
    for draft in drafts:
        if at > len(found.text):
            break
        found.drafts[at] = draft
        at += agreeing(draft, found.text, at) + 1
    return found


def here(model: Path, head: Path, asked: Sequence[list[int]], options: argparse.Namespace) -> Iterator[DraftedAnswer]:
    """Through the worker's own engine."""
    from services.api.messages import Sampling
    from services.worker.in_process import InProcessEngine, runner_with_head
    from services.worker.running.load_torch_model import Wanted

    wanted = Wanted(dtype="float32", draft_dtype="float32", kv_cache_mb=512)
    runner, drafter = runner_with_head(model, options.method, head, wanted)
    seen: dict[int, list[int]] = {}
    draft = drafter.draft

    def watched(requests: Any) -> Any:
        found = draft(requests)
        for request, each in zip(requests, found, strict=True):
            seen[len(request.text.tokens)] = list(each.tokens)[: options.longest]
        return found

    drafter.draft = watched
    for prompt in asked:
        seen.clear()
        engine, began = InProcessEngine(runner, options.method), time.perf_counter()
        # Of a block that is cut short all tokens are others, so none is near the end.
        [done] = engine.run({0: prompt}, Sampling(max_tokens=options.tokens + options.longest))
        yield DraftedAnswer(prompt, done.ids[: options.tokens], dict(seen), time.perf_counter() - began)


def compared(theirs: Sequence[DraftedAnswer], ours: Sequence[DraftedAnswer]) -> dict[str, Any]:
    """Of a draft that one side cut short because the answer ends, the tokens that both have."""
    drafts = tokens = equal = 0
    different: set[int] = set()
    for their, our in zip(theirs, ours, strict=True):
        for at, draft in our.drafts.items():
            if at in their.drafts and our.text[:at] == their.text[:at]:
                pairs = list(zip(draft, their.drafts[at], strict=False))
                drafts, tokens = drafts + 1, tokens + len(pairs)
                different.update(draft)
                equal += sum(one == other for one, other in pairs)
    rates = {"accepted_in_vllm": _mean_accepted(theirs), "accepted_here": _mean_accepted(ours)}
    missed = [] if equal >= EQUAL_BAR * tokens else [f"{equal} of {tokens} draft tokens are equal"]
    if abs(rates["accepted_in_vllm"] - rates["accepted_here"]) > ACCEPTED_BAR * rates["accepted_in_vllm"]:
        missed.append("acceptance differs")
    # vLLM's answers end with the token that ends them, ours before it.
    same = sum(
        their.ids[: len(our.ids)] == our.ids and len(their.ids) <= len(our.ids) + 1
        for their, our in zip(theirs, ours, strict=True)
    )
    found = {"same_texts": same, "drafts": drafts, "draft_tokens": tokens, "equal_tokens": equal}
    # Of a head that drafted one token again and again, equality would say nothing.
    found |= {"different_tokens": len(different)}
    speeds = {"tokens_per_second_in_vllm": _speed(theirs), "tokens_per_second_here": _speed(ours)}
    return found | rates | speeds | {"missed": missed}


def _speed(answers: Sequence[DraftedAnswer]) -> float:
    """Without the first prompt, behind which loops may be compiled."""
    seconds = sum(each.seconds for each in answers[1:])
    return sum(len(each.ids) for each in answers[1:]) / seconds if seconds else 0.0


def _mean_accepted(answers: Sequence[DraftedAnswer]) -> float:
    """Tokens of a draft; those at the end of an answer count only as far as it goes, and one behind its end, which only
    vLLM makes, not at all."""
    counts = [
        agreeing(draft, each.text, at) for each in answers for at, draft in each.drafts.items() if at < len(each.text)
    ]
    return sum(counts) / max(1, len(counts))
