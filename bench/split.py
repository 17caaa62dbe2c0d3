"""Prefill and decode workers against workers that do both, on this machine: short prompts with long answers run all the
time, and long prompts come beside them. Every side gets the same requests; its texts have to be the same.

    together     2 workers
    split        1 prefill worker, 1 decode worker
    split_2_1    2 prefill workers, 1 decode worker

With --page-transport mesh,nixl each side that hands pages over runs with both, the second as split_nixl.

Time between tokens is that of the short prompts' answers while long prompts are computed. What a handover adds is
measured on an idle mesh: the time to the first token of a long prompt, beside that of a mesh without phases.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bench.failures.failover import until_ready
from bench.running_mesh import RunningMesh, running_mesh
from bench.shown import Shown
from bench.streams import Chunks, chunks
from loadtest.server_metrics import parse

HELP = "prefill and decode workers against workers that do both: time to first token, between tokens, of a handover"
SIDES: dict[str, dict[str, Any]] = {
    "together": {"workers": 2},
    "split": {"prefill_workers": 1, "decode_workers": 1},
    "split_2_1": {"prefill_workers": 2, "decode_workers": 1},
}
NAME = "measured"
# Time between tokens at the 99th percentile, split over together.
BAR = 0.6
HANDOVER_METRICS = ("handover_pages_total", "handover_bytes_total", "handover_seconds_total",
                    "handover_recomputed_pages_total", "handover_read_pages_total")  # fmt: skip
SHOWN = (
    Shown("Prefill and decode workers, ms", "",
          {"together_itl_p99_ms": "between tokens p99, together", "split_itl_p99_ms": "between tokens p99, split",
           "split_2_1_itl_p99_ms": "between tokens p99, split_2_1",
           "together_long_ttft_p50_ms": "first token of long prompts, together",
           "split_long_ttft_p50_ms": "first token of long prompts, split",
           "split_2_1_long_ttft_p50_ms": "first token of long prompts, split_2_1"},
          "Short prompts with long answers run all the time, and long prompts come beside them, on the same cores."),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name, folder, GGUF file or hub id")
    parser.add_argument("--dtype", default="auto", help="as of a worker")
    parser.add_argument("--mock", action="store_true", help="the mock engine in place of the model")
    parser.add_argument("--sides", default=",".join(SIDES), help="of these, separated by commas")
    parser.add_argument("--page-transport", default="mesh", help="mesh, nixl, or both, separated by a comma")
    parser.add_argument("--short", type=int, default=6, help="streams with short prompts at a time")
    parser.add_argument("--short-tokens", type=int, default=200, help="of each of their answers")
    parser.add_argument("--long", type=int, default=12, help="long prompts, one after another")
    parser.add_argument("--long-words", type=int, default=900, help="of each long prompt")
    parser.add_argument("--alone", type=int, default=5, help="long prompts on the idle mesh")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"model": "mock" if options.mock else options.model, "dtype": options.dtype}
    texts: dict[str, list[str]] = {}
    for side, own in sides(options.sides, options.page_transport).items():
        workers = sum(each for each in own.values() if isinstance(each, int))
        with running_mesh(**settings(options), **own) as mesh:
            until_ready(mesh, workers)
            found, texts[side] = of_side(mesh, options)
            found |= handed_over(mesh, workers)
        figures |= {f"{side}_{name}": value for name, value in found.items()}
    figures["same_texts"] = all(each == texts[side] for each in texts.values())
    for side in texts.keys() - {"together"} if "together" in texts else ():
        ratio = figures[f"{side}_itl_p99_ms"] / figures["together_itl_p99_ms"]
        figures[f"{side}_itl_p99_of_together"] = round(ratio, 3)
        added = figures[f"{side}_alone_ttft_ms"] - figures["together_alone_ttft_ms"]
        figures[f"{side}_handover_adds_ms"] = round(added, 1)
    missed = [] if figures["same_texts"] else ["the texts of the sides differ"]
    ratio = figures.get("split_itl_p99_of_together", 0.0)
    missed += [f"split_itl_p99_of_together is {ratio}, at most {BAR}"] if ratio > BAR else []
    return figures | {"missed": missed}


def sides(names: str, transports: str) -> dict[str, dict[str, Any]]:
    """The settings of each side that runs, by its name."""
    chosen: dict[str, dict[str, Any]] = {}
    for name in names.split(","):
        if "workers" in SIDES[name]:
            chosen[name] = SIDES[name]
            continue
        for each in transports.split(","):
            chosen[name if each == "mesh" else f"{name}_{each}"] = SIDES[name] | {"page_transport": each}
    return chosen


def settings(options: argparse.Namespace) -> dict[str, Any]:
    common = {"served_model_name": NAME, "method": "naive"}
    if options.mock:
        profile = {"step_ms": 4, "row_us": 100, "vocab_size": 49152, "token_bytes": 23040}
        return common | {"engine": "mock", "mock_profile": json.dumps(profile)}
    return common | {"model": options.model, "dtype": options.dtype}


def of_side(mesh: RunningMesh, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Figures, and texts."""

    def ask(prompt: str, tokens: int) -> Chunks:
        body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return chunks(mesh.port, body)

    def ask_long(name: str, tokens: int) -> Chunks:
        words = " ".join(f"item{number % 10}" for number in range(options.long_words))
        return ask(f"Read the list {name}. {words}", tokens)

    ask("Say hello.", 8), ask_long("warm-up 0", 8), ask_long("warm-up 1", 8)
    alone = [ask_long(f"alone {turn}", 4) for turn in range(options.alone)]
    stop = threading.Event()

    def stream(number: int) -> list[Chunks]:
        found: list[Chunks] = []
        while not stop.is_set():
            found.append(ask(f"Story {number}.{len(found)}: tell me more.", options.short_tokens))
        return found

    with ThreadPoolExecutor(options.short) as callers:
        running = [callers.submit(stream, number) for number in range(options.short)]
        long = [ask_long(f"{turn}", 16) for turn in range(options.long)]
        stop.set()
        short = [each.result() for each in running]
    every = [each for answers in short for each in answers]
    gaps = [later - before for each in every for before, later in itertools.pairwise(each.at)]
    firsts = [each.first_s for each in long]
    # How many short answers there were is a matter of speed.
    texts = [each.text for each in [*alone, *long, *(answers[0] for answers in short)]]
    return {
        "alone_ttft_ms": _ms(statistics.median(each.first_s for each in alone)),
        "long_ttft_p50_ms": _ms(statistics.median(firsts)),
        "long_ttft_p99_ms": _ms(float(np.percentile(firsts, 99))),
        "short_ttft_p50_ms": _ms(statistics.median(each.first_s for each in every)),
        "itl_p50_ms": _ms(statistics.median(gaps)),
        "itl_p99_ms": _ms(float(np.percentile(gaps, 99))),
        "short_answers": len(every),
    }, texts


def handed_over(mesh: RunningMesh, workers: int) -> dict[str, float]:
    """Sums over all workers; each page counts twice, as lent and as fetched."""
    summed = dict.fromkeys(HANDOVER_METRICS, 0.0)
    for number in range(workers):
        with urllib.request.urlopen(f"http://127.0.0.1:{mesh.metrics_base + 3 + 10 * number}/metrics") as answer:
            for (name, _), value in parse(answer.read().decode()).items():
                if (known := name.removeprefix("specmesh:")) in summed:
                    summed[known] += value
    return {name.removesuffix("_total"): round(value, 3) for name, value in summed.items()}


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 2)
