"""What the mesh adds to one step of one stream, and what a draft adds between two steps, seen from outside.

The mock engine sleeps a known time per step, however many rows it has, so the time between two chunks of a stream is
that time plus what scheduler, drafting and delivery add. The way from the worker to the reader takes the same time for
every chunk and cancels out. Medians, in turns with a stream without speculation.

added      time between chunks without drafts, less the sleep as this machine keeps it
prepared   drafts that were there when the step began: every draft is accepted, so the next one is asked for in time
waited     drafts the step waited for: most are rejected, and then the next one can only be asked for afterwards

How drafts came is the worker's own count (`specmesh:drafts_came`); `share` is the part of verify steps with drafts
whose draft came that way. The median says what it is meant to only where that is most of them.

cpu_us     CPU time of what a worker does around a step of many sequences, without the mesh (bookkeeping.py)
period_ms  from one step to the next of a device that takes 1 ms for each, with many sequences, without the mesh
busy       the share of the time in which such a device computes, if another request comes whenever one ends
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from typing import Any, NamedTuple

from bench import bookkeeping
from bench.running_mesh import RunningMesh, running_mesh
from bench.shown import Shown
from bench.streams import chunks

HELP = "milliseconds the mesh adds to a step, and a prepared or awaited draft adds between two steps"
NAME = "measured"
ADDED_BAR_MS = 1.0
LEAST_SHARE = 0.6
# Chunks of each stream that are not counted: prefill, and the first drafts of a new text.
SKIPPED = 40
PROMPT = "one two three four five six seven eight nine ten. " * 20
SLEEPS = 100
SHOWN = (
    Shown("What a draft adds to a step", "drafts>*",
          {"naive_p50_ms": "between tokens without a draft p50, ms", "p50_ms": "with one", "added_p50_ms": "added",
           "share:.2f": "share of drafts that came so"},
          "*prepared*: the draft was there when the step began; *waited*: the step waited for it."),
    Shown("CPU time around a step by drafts and sequences, µs", "cpu_us>*>*",
          {"between": "between two steps", "beside": "beside a step", "loop": "in the event loop"},
          "*useless*: `auto`, and no draft is accepted. What is done beside a step delays none on a GPU."),
    Shown("From one step of a simulated device to the next, by sequences, ms", "period_ms",
          say="Each takes the device 1 ms; nothing is drafted."),
    Shown("Busy share of a simulated device, by sequences", "busy>*", say="Nothing is drafted. Prompts of 100 tokens, "
          "answers of 200; another request comes whenever one ends."),
)  # fmt: skip


class Timed(NamedTuple):
    """`ways`: names of the worker's count that mean it. `bar_ms`: p50 that such a draft may add between two steps."""

    acceptance: float
    ways: tuple[str, ...]
    bar_ms: float


CASES = {"prepared": Timed(1.0, ("kept", "ahead", "lease"), 0.1), "waited": Timed(0.3, ("waited", "asked"), 0.35)}


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step-ms", type=float, default=5.0, help="time of a step of the mock engine")
    parser.add_argument("--steps", type=int, default=300, help="verify steps of each stream, about")
    parser.add_argument("--rounds", type=int, default=6, help="streams of each kind, in turns")
    parser.add_argument("--method", default="suffix", help="whose drafts are asked for")
    parser.add_argument("--longest", type=int, default=4, help="longest draft")
    parser.add_argument("--only", choices=("cpu",), help="CPU time alone, which other load moves little")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    cpu: dict[str, Any] = {"cpu_us": bookkeeping.measure(), "period_ms": bookkeeping.periods()}
    cpu["busy"] = bookkeeping.busy()
    return cpu if options.only else {**cpu, **_in_the_mesh(options)}


def _in_the_mesh(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"step_ms": options.step_ms, "sleep_p50_ms": slept_ms(options.step_ms), "drafts": {}}
    for name, case in CASES.items():
        profile = {"step_ms": options.step_ms, "row_us": 0, "acceptance": case.acceptance, "vocab_size": 49152}
        with running_mesh(engine="mock", mock_profile=json.dumps(profile), served_model_name=NAME) as mesh:
            figures["drafts"][name] = in_turns(mesh, case, options)
    plain = statistics.fmean(each["naive_p50_ms"] for each in figures["drafts"].values())
    figures["naive"] = {"itl_p50_ms": round(plain, 3), "added_p50_ms": round(plain - figures["sleep_p50_ms"], 3)}
    return figures | {"missed": missed(figures)}


def slept_ms(milliseconds: float) -> float:
    """What a sleep of so long really takes here, p50."""
    took = []
    for _ in range(SLEEPS):
        began = time.perf_counter()
        time.sleep(milliseconds / 1e3)
        took.append(time.perf_counter() - began)
    return round(statistics.median(took) * 1e3, 3)


def in_turns(mesh: RunningMesh, case: Timed, options: argparse.Namespace) -> dict[str, float]:
    drafting = {"method": options.method, "num_speculative_tokens": options.longest}
    # Accepted drafts give more tokens a step.
    tokens = {"naive": options.steps, "drafts": round(options.steps * (1 + case.acceptance * options.longest))}
    rounds: list[dict[str, list[float]]] = []
    before = came(mesh)
    for turn in range(options.rounds):
        gaps: dict[str, list[float]] = {}
        for kind in list(tokens)[:: 1 if turn % 2 else -1]:
            wish = drafting if kind == "drafts" else {"method": "naive"}
            gaps[kind] = gaps_of(mesh, wish, tokens[kind], f"{kind} {turn}")
        rounds.append(gaps)
    return told(rounds, before, came(mesh), case.ways)


def gaps_of(mesh: RunningMesh, speculation: dict[str, Any], tokens: int, salt: str) -> list[float]:
    body = {
        "model": NAME, "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
        "speculation": speculation, "cache_salt": salt,
    }  # fmt: skip
    at = chunks(mesh.port, body).at[SKIPPED:]
    return [later - earlier for earlier, later in itertools.pairwise(at)]


def came(mesh: RunningMesh) -> dict[str, float]:
    return mesh.by_label("worker", "specmesh:drafts_came_total", "way")


def told(
    rounds: list[dict[str, list[float]]], before: dict[str, float], after: dict[str, float], ways: tuple[str, ...]
) -> dict[str, float]:
    """Medians over rounds: what disturbs one of them disturbs both of its streams, or one figure in several."""
    counts = {way: count - before.get(way, 0.0) for way, count in after.items() if way != "none"}
    plain, drafted = ([statistics.median(gaps[kind]) * 1e3 for gaps in rounds] for kind in ("naive", "drafts"))
    added = [each - other for each, other in zip(drafted, plain, strict=True)]
    return {
        "naive_p50_ms": round(statistics.median(plain), 3),
        "p50_ms": round(statistics.median(drafted), 3),
        "added_p50_ms": round(statistics.median(added), 3),
        "share": round(sum(counts.get(way, 0.0) for way in ways) / max(1.0, sum(counts.values())), 3),
        "steps": sum(len(gaps["drafts"]) for gaps in rounds),
    }


def missed(figures: dict[str, Any]) -> list[str]:
    found = []
    if (added := figures["naive"]["added_p50_ms"]) > ADDED_BAR_MS:
        found.append(f"the mesh adds {added:.2f} ms a step, the bar is {ADDED_BAR_MS}")
    for name, case in CASES.items():
        seen = figures["drafts"][name]
        if seen["share"] < LEAST_SHARE:
            found.append(f"{name}: only {seen['share']:.0%} of drafts came that way, {LEAST_SHARE:.0%} are needed")
        elif seen["added_p50_ms"] > case.bar_ms:
            found.append(f"{name}: adds {seen['added_p50_ms']:.3f} ms, the bar is {case.bar_ms}")
    return found
