"""What proposers cost and bring: on the Python standard library's sources, as tokens of the default model.

`--tokens` of them are learned, the files after those are replayed: each step a proposer drafts behind the true text,
and what it got right is skipped. So far suffix decoding and n-grams, each with the request's own text, and suffix with
all that was learned. On a machine that is busy the times are worth little; the row tells its load.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import sysconfig
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from services.proposer.auto import AutoProposer
from services.proposer.knowledge import Knowledge, Rule
from services.proposer.namespaces import Namespaces
from services.proposer.ngram import NgramProposer
from services.proposer.proposer import Ask, Proposer, View
from services.proposer.suffix import SuffixProposer
from services.proposer.suffix_store import compiling

HELP = "what proposers cost (append, draft, bytes) and bring (accepted tokens a step)"
APPEND_NS, DRAFT_P50_US, DRAFT_P99_US, BYTES = 800, 3.0, 20.0, 140
DEPTH = 64
# Who learns, and whose the replayed files are.
SPACE = "learned"
# Of a replayed file: what is known before the first draft.
PROMPT = 200


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=1_000_000, help="learned before the rest is replayed")
    parser.add_argument("--batch", type=int, default=32, help="files replayed at a time")
    parser.add_argument("--replayed", type=int, default=96, help="files replayed in all")
    parser.add_argument("--longest", type=int, default=8, help="num_speculative_tokens")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    compiling.start().join()
    texts = corpus(options.tokens, options.replayed)
    learned, held_out = texts[: -options.replayed], texts[-options.replayed :]
    store = Store(learned)
    figures: dict[str, Any] = {
        "learned_tokens": store.automaton.tokens,
        "start": start_seconds(),
        "append": store.appended,
        "bytes_per_token": store.automaton.held_bytes() / store.automaton.tokens,
        "draft": store.replay(held_out[: options.batch], options.longest),
        "accepted": {},
    }
    for name, proposer in proposers(learned).items():
        figures["accepted"][name] = replayed(proposer, held_out, options.batch, options.longest)
    figures["missed"] = missed(figures)
    return figures


def missed(figures: dict[str, Any]) -> list[str]:
    bars = (
        ("append, ns a token", figures["append"]["wall_ns"], APPEND_NS),
        ("draft p50, µs a sequence", figures["draft"]["p50_us"], DRAFT_P50_US),
        ("draft p99, µs a sequence", figures["draft"]["p99_us"], DRAFT_P99_US),
        ("bytes a token", figures["bytes_per_token"], BYTES),
    )
    return [f"{name}: {seen:.1f}, the bar is {bar}" for name, seen, bar in bars if seen > bar]


# Text -----------------------------------------------------------------------------------------------------


def corpus(tokens: int, more_files: int) -> list[array[int]]:
    """Files in an order that is the same everywhere: so many tokens of them, and so many files more."""
    from tokenizers import Tokenizer

    from models.sources import ensure_model
    from services.config import Settings, cache_dir

    folder = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()))
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in sorted(root.rglob("*.py")) if "site-packages" not in file.parts]
    random.Random(1).shuffle(files)
    texts, total = [], 0
    for file in files:
        text = array("i", tokenizer.encode(file.read_text(errors="replace")).ids)
        if len(text) < 2 * PROMPT:
            continue
        if total >= tokens:
            more_files -= 1
        total += len(text)
        texts.append(text)
        if not more_files:
            return texts
    raise SystemExit(f"the standard library has only {total} tokens")


# The store alone ------------------------------------------------------------------------------------------


class Store:
    """What everything learned costs in a namespace, besides what a text of one's own costs anyway."""

    def __init__(self, learned: list[array[int]]) -> None:
        alone, self.knowledge = Knowledge(Namespaces(DEPTH, 1, 0)), knowing(learned)
        own, _ = learn(alone, learned)
        both, slices = learn(self.knowledge, learned)
        [namespace] = self.knowledge.namespaces.known()
        self.automaton = namespace.automata[0]
        tokens = self.automaton.tokens
        self.appended = {
            "wall_ns": (both["wall"] - own["wall"]) / tokens * 1e9,
            "cpu_ns": (both["cpu"] - own["cpu"]) / tokens * 1e9,
            "own_wall_ns": own["wall"] / tokens * 1e9,
            "longest_slice_ms": max(slices) * 1e3,
        }

    def replay(self, texts: list[array[int]], longest: int, steps: int = 300) -> dict[str, float]:
        """Texts that grow by a few tokens a step, and are guessed from their own and all that was learned, through the
        proposers' own interface."""
        rule = Rule()
        found = {"batch": float(len(texts))}
        for name, proposer in (("", SuffixProposer(self.knowledge, rule)), ("auto_", AutoProposer(self.knowledge))):
            chance = random.Random(2)
            views = [View(-1 - at, text[:PROMPT], PROMPT, namespace=SPACE) for at, text in enumerate(texts)]
            seconds = []
            for _ in range(steps):
                for view, text in zip(views, texts, strict=True):
                    begin = len(view.tokens) % (len(text) - 3)
                    view.tokens.extend(text[begin : begin + chance.randint(1, 3)])
                asks = [Ask(view, longest) for view in views]
                begun = time.perf_counter()
                proposer.propose(asks)
                seconds.append((time.perf_counter() - begun) / len(texts) * 1e6)
            for view in views:
                proposer.forget(view.sequence_id)
            found[f"{name}p50_us"], found[f"{name}p99_us"] = (float(np.percentile(seconds, at)) for at in (50, 99))
        return found


def knowing(learned: list[array[int]]) -> Knowledge:
    return Knowledge(Namespaces(DEPTH, 4 * sum(map(len, learned))))


def learn(knowledge: Knowledge, texts: list[array[int]]) -> tuple[dict[str, float], list[float]]:
    """Seconds in all, and of each slice."""
    wall, cpu, slices = time.perf_counter(), time.process_time(), []
    for number, text in enumerate(texts):
        view = View(number, text, namespace=SPACE)
        while not knowledge.is_followed(view):
            begun = time.perf_counter()
            knowledge.follow([view])
            slices.append(time.perf_counter() - begun)
        knowledge.forget(number)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}, slices


def start_seconds() -> dict[str, float]:
    """A fresh process: imports, then loading the compiled loops (or compiling, where nothing is kept on disk)."""
    code = (
        "import time; a = time.perf_counter()\n"
        "from services.proposer.suffix_store import compiling\n"
        "b = time.perf_counter(); compiling.start().join(); print(b - a, time.perf_counter() - b)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return {"import_s": float(found[0]), "load_s": float(found[1])}


# What drafts bring ----------------------------------------------------------------------------------------


def proposers(learned: list[array[int]]) -> dict[str, Proposer]:
    shared = knowing(learned)
    learn(shared, learned)

    def alone() -> Knowledge:
        return Knowledge(Namespaces(DEPTH, 1, 0))

    return {
        "ngram, own text": NgramProposer(alone()),
        "suffix, own text": SuffixProposer(alone(), Rule()),
        "suffix, own text, factor 4": SuffixProposer(alone(), Rule(factor=4.0)),
        "suffix, own and learned text": SuffixProposer(shared, Rule()),
    }


def replayed(proposer: Proposer, texts: list[array[int]], batch: int, longest: int) -> dict[str, float]:
    """Tokens a step, as a target would have seen them, and what the batches took."""
    steps = drafted = accepted = 0
    seconds = []
    for begin in range(0, len(texts), batch):
        group = texts[begin : begin + batch]
        views = [View(1 + begin + at, text[:PROMPT], PROMPT, namespace=SPACE) for at, text in enumerate(group)]
        running = list(zip(views, group, strict=True))
        while running:
            begun = time.perf_counter()
            drafts = proposer.propose([Ask(view, longest) for view, _ in running])
            seconds.append((time.perf_counter() - begun) / len(running))
            for (view, text), draft in zip(running, drafts, strict=True):
                right = agreeing(draft.tokens, text, len(view.tokens))
                steps, drafted, accepted = steps + 1, drafted + len(draft.tokens), accepted + right
                view.tokens.extend(text[len(view.tokens) : len(view.tokens) + right + 1])
            running = [(view, text) for view, text in running if len(view.tokens) < len(text)]
        for view in views:
            proposer.forget(view.sequence_id)
    return {
        "steps": steps,
        "accepted_per_step": accepted / steps,
        "drafted_per_step": drafted / steps,
        "accepted_of_drafted": accepted / max(1, drafted),
        "p50_us": float(np.percentile(seconds, 50)) * 1e6,
        "p99_us": float(np.percentile(seconds, 99)) * 1e6,
    }


def agreeing(draft: list[int], text: array[int], position: int) -> int:
    for count, token in enumerate(draft):
        if position + count >= len(text) or text[position + count] != token:
            return count
    return len(draft)
