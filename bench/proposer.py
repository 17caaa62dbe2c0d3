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

from services.proposer.ngram import NgramProposer
from services.proposer.proposer import Ask, Proposer, View
from services.proposer.suffix import SLICE, SuffixProposer
from services.proposer.suffix_store import compiling, loops
from services.proposer.suffix_store.automaton import Automaton
from services.proposer.suffix_store.followers import Followers, Rule, Turn

HELP = "what proposers cost (append, draft, bytes) and bring (accepted tokens a step)"
APPEND_NS, DRAFT_P50_US, DRAFT_P99_US, BYTES = 800, 3.0, 20.0, 140
DEPTH = 64
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
    """One automaton of everything learned, and what writing it cost."""

    def __init__(self, learned: list[array[int]]) -> None:
        self.automaton, self.followers = Automaton(DEPTH), Followers()
        wall, cpu, slices = time.perf_counter(), time.process_time(), []
        for text in learned:
            writer = self.followers.write(self.automaton)
            for at in range(0, len(text), SLICE):
                begun = time.perf_counter()
                piece = text[at : at + SLICE]
                self.followers.run([Turn(writer, piece)], Rule())
                slices.append(time.perf_counter() - begun)
            self.followers.release(writer)
        tokens = self.automaton.tokens
        self.appended = {
            "wall_ns": (time.perf_counter() - wall) / tokens * 1e9,
            "cpu_ns": (time.process_time() - cpu) / tokens * 1e9,
            "longest_slice_ms": max(slices) * 1e3,
        }

    def replay(self, texts: list[array[int]], longest: int, steps: int = 300) -> dict[str, float]:
        """Readers of all texts at once, a few tokens a step: seconds of the one compiled call, and of what is around
        it in Python."""
        readers = [self.followers.read(self.automaton) for _ in texts]
        chance = random.Random(2)
        positions = [chance.randrange(len(text) // 2) for text in texts]
        inside, whole = [], []
        for _ in range(steps):
            turns = []
            for at, text in enumerate(texts):
                taken = chance.randint(1, 3)
                begin = positions[at] if positions[at] + taken < len(text) else 0
                positions[at] = begin + taken
                turns.append(Turn(readers[at], text[begin : positions[at]], longest))
            begun = time.perf_counter()
            packed = self.followers.pack(turns, Rule())
            called = time.perf_counter()
            loops.run(*packed)
            inside.append((time.perf_counter() - called) / len(texts) * 1e6)
            whole.append((time.perf_counter() - begun) / len(texts) * 1e6)
        for reader in readers:
            self.followers.release(reader)
        found = {"batch": len(texts)}
        for name, seen in (("", inside), ("packed_", whole)):
            found |= {f"{name}p50_us": float(np.percentile(seen, 50)), f"{name}p99_us": float(np.percentile(seen, 99))}
        return found


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
    shared = SuffixProposer(DEPTH, Rule(), None, 4 * sum(map(len, learned)))
    for number, text in enumerate(learned):
        view = View(-1 - number, text)
        for _ in range(-(-len(text) // SLICE)):
            shared.propose([Ask(view, 0)])
        shared.forget(view.sequence_id)
    return {
        "ngram, own text": NgramProposer(2, 5),
        "suffix, own text": SuffixProposer(DEPTH, Rule()),
        "suffix, own text, factor 4": SuffixProposer(DEPTH, Rule(factor=4.0)),
        "suffix, own and learned text": shared,
    }


def replayed(proposer: Proposer, texts: list[array[int]], batch: int, longest: int) -> dict[str, float]:
    """Tokens a step, as a target would have seen them, and what the batches took."""
    steps = drafted = accepted = 0
    seconds = []
    for begin in range(0, len(texts), batch):
        group = texts[begin : begin + batch]
        views = [View(begin + at, text[:PROMPT], PROMPT) for at, text in enumerate(group)]
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
