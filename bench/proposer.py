"""What our proposers guess, bring and cost; beside them arctic-inference's suffix cache, where `--arctic` names an
interpreter that has it.

1. Time of a sequence's step (what was said is learned, then a draft) in a full batch, of a learned token, and bytes:
   the Python library's sources are learned, and other files of it are said again in the same steps.
2. Accepted tokens a step for several kinds of text at as many drafted tokens as theirs has.

Ours is used through the proposers' seam, as the proposer process does. On a busy machine times are worth little.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import operator
import subprocess
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench import replay
from bench.kinds import KINDS, texts_of
from bench.replay import ReplayGuess, Text
from bench.rows import ROOT
from bench.shown import Shown
from services.api.drafter import Draft, Drafter, DraftRequest
from services.api.drafter import Text as FollowedText
from services.api.settings import Settings
from services.proposer.fast import compiling
from services.proposer.index import SuffixIndex
from services.proposer.registry import make_drafters

HELP = "drafts, accepted tokens, time and bytes of our proposers, beside arctic-inference's (--arctic PYTHON)"
DEPTH, LEAST = 64, 0.1
STEP_P50_US, STEP_P99_US, LEARN_NS, BYTES = 10.0, 20.0, 800.0, 140.0
BRINGS, NEVER_BELOW = 1.10, 1.0
# Of a text of part 1: all of them fit beside a million learned tokens into one mutable store of ours.
SAID, LONGEST = 1400, 32
# Part 2: longest drafts, and where ours may be cut.
BRINGS_LONGEST = 16
CHANCES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6, 0.8)
LENGTHS = (16, 12, 8, 6, 4, 3, 2, 1)
BRINGING = ("suffix", "auto")
# What is learned, and what is said again.
Texts = tuple[Any, Any]
SHOWN = (
    Shown("What a step of a proposer costs", "ours|theirs",
          {"step>p50_us": "a step p50, µs", "step>p99_us": "p99", "learn>ns_per_token": "a token learned, ns",
           "learn>bytes_per_token": "bytes a token", "learn>tokens": "tokens learned"},
          "A step of a sequence in a full batch: what was said is learned, then a draft. *theirs*: arctic-inference.",
          by=("theirs>version",)),
    Shown("What drafts bring: accepted tokens a step", "brings>kinds>*",
          {"ours>suffix>1": "suffix", "ours>auto>1": "auto", "theirs>1": "arctic-inference",
           "ratio>auto": "auto at as many drafted"}),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arctic", default="", help="an interpreter that has arctic-inference and numpy")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="learned before the rest is replayed")
    parser.add_argument("--batch", type=int, default=32, help="texts replayed at a time")
    parser.add_argument("--replayed", type=int, default=32, help="texts replayed in all, part 1")
    parser.add_argument("--kind-tokens", type=int, default=150_000, help="learned of each kind of text, part 2")
    parser.add_argument("--kind-replayed", type=int, default=32, help="texts replayed of each kind, part 2")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    parser.add_argument("--only", choices=("costs", "brings"), help="part 1 or part 2")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if options.only != "brings":
        figures |= costs(options)
    if options.only != "costs":
        figures["brings"] = brings(options)
    figures["missed"] = missed(figures)
    return figures


# Ours -----------------------------------------------------------------------------------------------------


class OurGuesser:
    """A drafter of the registry, alone in its process."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._index, self._drafter = drafter_of(job)
        self._longest: int = job["longest"]
        self._texts: dict[int, FollowedText] = {}
        self._numbers = iter(range(1, 1 << 60))

    def begin(self, key: int, prompt: Text) -> None:
        text = FollowedText(next(self._numbers), array("i", prompt), len(prompt), namespace="bench")
        self._texts[key] = text
        # A long prompt is taken in by several calls.
        for _ in range(1 + len(prompt) // replay.PIECE):
            self.learn(key)

    def take(self, key: int, tokens: Text) -> None:
        self._texts[key].tokens.extend(tokens)

    def learn(self, key: int) -> None:
        self._drafter.draft([DraftRequest(self._texts[key], 0)])

    def guess(self, keys: Sequence[int]) -> Sequence[Draft]:
        return self._drafter.draft([DraftRequest(self._texts[key], self._longest) for key in keys])

    def told(self, keys: Sequence[int], drafts: Sequence[Draft]) -> list[ReplayGuess]:
        multiplied = [list(itertools.accumulate(draft.confidence, operator.mul)) for draft in drafts]
        return [ReplayGuess(draft.tokens, each) for draft, each in zip(drafts, multiplied, strict=True)]

    def end(self, key: int) -> None:
        self.learn(key)
        self._drafter.forget([self._texts.pop(key).text_id])

    def held_bytes(self) -> int:
        return self._index.stats().memory_bytes


def drafter_of(job: dict[str, Any]) -> tuple[SuffixIndex, Drafter]:
    """A fresh one whose loops are compiled."""
    settings = Settings.for_tests(
        method=job["method"],
        suffix_decoding_max_tree_depth=job["depth"],
        suffix_decoding_max_spec_factor=job["factor"],
        suffix_decoding_min_token_prob=job["min_token_prob"],
        suffix_decoding_max_cached_requests=-1,
        proposer_tokens=20_000_000,
        store_dir="none",
    )
    # All of them: what is compiled beside the measured calls takes their core, and the interpreter's lock.
    compiling.start().join()
    index = SuffixIndex.open(settings)
    drafter = make_drafters(settings, index)[job["method"]]
    text = FollowedText(0, array("i", [1, 2, 3, 4] * 20), 0, namespace="warm up")
    if not drafter.draft([DraftRequest(text, 8)])[0].tokens:
        raise SystemExit(f"{job['method']} drafts nothing for a text that repeats itself")
    drafter.forget([0])
    return index, drafter


# Jobs -----------------------------------------------------------------------------------------------------


def job(texts: Texts, **more: Any) -> dict[str, Any]:
    usual = {"method": "suffix", "depth": DEPTH, "factor": 1.0, "min_token_prob": LEAST}
    return usual | {"learned": texts[0], "said": texts[1]} | more


def ours(each: dict[str, Any]) -> dict[str, Any]:
    return replay.figures_of(OurGuesser, each)


def theirs(python: str, jobs: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Version, and figures of each job; one process for all."""
    command = [python, "-m", "bench.oracles.arctic"]
    done = subprocess.run(command, input=json.dumps(jobs, default=list), capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{python} -m bench.oracles.arctic failed:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    return answer["version"], answer["figures"]


# 1: time, bytes -------------------------------------------------------------------------------------------


def costs(options: argparse.Namespace) -> dict[str, Any]:
    found = texts_of("python", options.tokens, options.replayed)
    if found is None:
        raise SystemExit("the Python library has too few tokens")
    texts = found[0], [text[:SAID] for text in found[1]]
    told = job(texts, how="scheduled", longest=LONGEST, batch=options.batch)
    figures: dict[str, Any] = {"ours": ours(told)}
    if options.arctic:
        version, (other,) = theirs(options.arctic, [told])
        figures["theirs"] = {"version": version, **other}
    return figures


# 2: what drafts bring -------------------------------------------------------------------------------------


def brings(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"kinds": {}}
    for kind in options.kinds.split(","):
        texts = texts_of(kind, options.kind_tokens, options.kind_replayed)
        if texts is None:
            print(f"too little of {kind} here", flush=True)
            continue
        usual = {"how": "free", "longest": BRINGS_LONGEST, "batch": options.batch}
        found["kinds"][kind] = seen = kind_of(texts, usual, options.arctic)
        print(kind, json.dumps({name: each for name, each in seen.items() if name != "curves"}), flush=True)
    for name in BRINGING:
        if ratios := [each["ratio"][name] for each in found["kinds"].values() if name in each.get("ratio", {})]:
            to_four = [each["to factor 4"][name] for each in found["kinds"].values()]
            found[name] = {"geometric_mean": mean_of(ratios), "least": min(ratios), "to factor 4": mean_of(to_four)}
    return found


def kind_of(texts: Texts, usual: dict[str, Any], arctic: str) -> dict[str, Any]:
    """Ours along a curve of drafted tokens, so that it can be read at theirs."""
    seen: dict[str, Any] = {"curves": {name: curve(texts, usual, name) for name in BRINGING}}
    seen["ours"] = {name: points[0] for name, points in seen["curves"].items()}
    if arctic:
        factors = [job(texts, **usual, factor=factor) for factor in (1.0, 4.0)]
        _, (one, four) = theirs(arctic, factors)
        seen["theirs"], seen["theirs, factor 4"] = point(one["free"]), point(four["free"])
        drafted, accepted = seen["theirs"]
        seen["ratio"] = {
            name: round(at_drafted(points, drafted) / accepted, 3) for name, points in seen["curves"].items()
        }
        seen["to factor 4"] = {
            name: round(whole[1] / point(four["free"])[1], 3) for name, whole in seen["ours"].items()
        }
    return seen


def mean_of(ratios: Sequence[float]) -> float:
    return round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3)


def curve(texts: Texts, usual: dict[str, Any], method: str) -> list[tuple[float, float]]:
    """(drafted, accepted) a step: the whole drafts first, then cut by their chances, or by length where those aren't
    told."""
    whole = job(texts, **usual, method=method)
    points = [point(ours(whole)["free"])]
    # Nothing is that probable: where all of a draft stays, chances aren't told.
    if point(ours({**whole, "least_chance": 2.0})["free"])[0] == 0:
        return points + [point(ours({**whole, "least_chance": chance})["free"]) for chance in CHANCES[1:]]
    return points + [point(ours({**whole, "longest": longest})["free"]) for longest in LENGTHS[1:]]


def point(free: dict[str, float]) -> tuple[float, float]:
    return round(free["drafted_per_step"], 4), round(free["accepted_per_step"], 4)


def at_drafted(points: Sequence[tuple[float, float]], drafted: float) -> float:
    """Accepted where so many are drafted, between the points of the curve; where it doesn't draft as many, its most."""
    known = sorted([(0.0, 0.0), *points])
    return float(np.interp(drafted, [each[0] for each in known], [each[1] for each in known]))


def missed(figures: dict[str, Any]) -> list[str]:
    bars: list[tuple[str, float, float, bool]] = []
    if mine := figures.get("ours"):
        step, learn = mine["step"], mine["learn"]
        bars += [
            ("step p50, µs a sequence", step.get("p50_us", 0.0), STEP_P50_US, False),
            ("step p99, µs a sequence", step.get("p99_us", 0.0), STEP_P99_US, False),
            ("learning, ns a token", learn["ns_per_token"], LEARN_NS, False),
            ("bytes a token", learn["bytes_per_token"], BYTES, False),
        ]
    # suffix means the same as theirs, and brings the same.
    if seen := figures.get("brings", {}).get("auto"):
        bars += [
            ("auto: accepted of theirs, mean", seen["geometric_mean"], BRINGS, True),
            ("auto: accepted of theirs, least", seen["least"], NEVER_BELOW, True),
            ("auto as it is: accepted of theirs at factor 4", seen["to factor 4"], NEVER_BELOW, True),
        ]
    return [
        f"{name}: {seen:.3f}, the bar is {bar}"
        for name, seen, bar, is_least in bars
        if (seen < bar if is_least else seen > bar)
    ]
