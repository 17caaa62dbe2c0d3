"""What the prefix cache brings over HTTP with the real model: the time to the first token of prompts of about 2 000
tokens that share nine tenths with an earlier one, beside that of prompts of which nothing is cached.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from typing import Any

from bench import turns
from bench.running_mesh import running_mesh
from bench.shown import Shown

HELP = "time to the first token of a long prompt over HTTP, cached and not"
NAME = "measured"
BAR = 0.2
SHOWN = (
    Shown("The first token of a prompt of 2 000 tokens", "",
          {"cold_ttft_ms": "nothing cached, ms", "prefix_ttft_ms": "nine tenths cached, ms",
           "prefix_ttft_interval>0&prefix_ttft_interval>1": "ratio, 95 %"}),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name, folder, GGUF file or hub id")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "int8"))
    parser.add_argument("--rounds", type=int, default=4, help="prompts of each kind, 2 or more, after a first one")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"model": options.model, "dtype": options.dtype}
    with running_mesh(model=options.model, served_model_name=NAME, dtype=options.dtype, method="naive") as mesh:
        figures |= shared_prefix(mesh.url, options.rounds)
    ratio = figures["prefix_ttft_of_cold"]
    return figures | {"missed": [f"prefix_ttft_of_cold is {ratio}, at most {BAR}"] if ratio > BAR else []}


def shared_prefix(url: str, rounds: int) -> dict[str, Any]:
    colds, warms = [], []
    for turn in range(rounds + 1):
        shared = "".join(f"Fact {turn}.{i}: the number {i * 37 + turn} is odd or even. " for i in range(115))
        colds.append(_ask(url, shared + f"Question one of turn {turn}: " + "which are odd? " * 45))
        warms.append(_ask(url, shared + f"And question two of {turn}: " + "which are even? " * 45))
    cold, warm = statistics.median(colds[1:]), statistics.median(warms[1:])
    seen = turns.of_pairs([after / before for before, after in zip(colds[1:], warms[1:], strict=True)])
    return {
        "cold_ttft_ms": round(cold * 1e3, 1),
        "prefix_ttft_ms": round(warm * 1e3, 1),
        "prefix_ttft_of_cold": round(warm / cold, 3),
        "prefix_ttft_interval": [round(seen.low, 3), round(seen.high, 3)],
    }


def _ask(url: str, prompt: str) -> float:
    """Seconds until one token has come."""
    body = {"model": NAME, "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    begin = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()
    return time.perf_counter() - begin
