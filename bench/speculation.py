"""What speculation brings to whoever reads a stream: the same requests with each method, over HTTP, in one run.

One stream: every request is sent with one method after the other, so that what else the machine does falls on all of
them alike. Several at a time: a block of requests with one method, then the same block with the next, and so on in
turns; methods are not mixed within a batch, where the slowest sets everyone's pace. Each pass through the requests has
a `cache_salt` of its own: what is learned in it comes from the requests before, and never from their repetition. In a
cold workload each request has its own: nothing is learned.

The texts of all methods are compared. A speed-up is a ratio of times for the same text; its interval is a bootstrap's
over requests, each the mean of its rounds.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.running_mesh import RunningMesh, running_mesh
from bench.streams import Heard, listen
from bench.workloads import LEADING, WORKLOADS, Body, from_lines, salt_of

HELP = "speed-up of each method over HTTP, by kind of request, one stream and several; are the texts the same?"
NAME = "measured"
NAIVE, AUTO = "naive", "auto"
# auto against naive, one stream; and against naive and the best fixed method anywhere.
ONE_STREAM_BARS = {"edit-favourable": 3.0, "agentic": 3.0, "retrieval": 1.8, "chat": 0.99}
NEVER_UNDER, OF_THE_BEST = 0.99, 0.95
SEED = 1
RESAMPLES = 2000


class Method(NamedTuple):
    """`name[:longest draft][+trees]`, as it was given; without a number the server's choice."""

    label: str
    speculation: dict[str, Any]


class Seen(NamedTuple):
    """One pass of a method through a workload's requests, and what it took from its first request to its last end."""

    heard: list[Heard]
    seconds: float


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name, folder, GGUF file or hub id")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "int8"))
    parser.add_argument(
        "--methods", default="naive,ngram:5,suffix:8,auto", help="NAME[:LONGEST][+trees], comma-separated"
    )
    parser.add_argument("--workloads", default=",".join(LEADING), help=f"comma-separated, of {', '.join(WORKLOADS)}")
    parser.add_argument(
        "--lines", type=Path, action="append", default=[], help="a file of JSON lines as a workload more"
    )
    parser.add_argument("--concurrency", default="1,4,16", help="comma-separated")
    parser.add_argument("--requests", type=int, default=12, help="of a workload")
    parser.add_argument("--waves", type=int, default=2, help="several at a time: at least so many times as many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="5 requests, one round, one stream: 2 minutes with 3 methods"
    )
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the server")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.quick:
        options.requests, options.rounds, options.concurrency = 5, 1, "1"
    methods = [method(label) for label in options.methods.split(",")]
    figures: dict[str, Any] = {"model": options.model, "dtype": options.dtype, "rounds": options.rounds}
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="store-") as store, running_mesh(**settings(options, store)) as mesh:
        warm_up(mesh, methods)
        for workload in [*options.workloads.split(","), *map(str, options.lines)]:
            for concurrency in map(int, options.concurrency.split(",")):
                least = options.waves * concurrency if concurrency > 1 else 0
                bodies = requests_of(workload, max(options.requests, least))
                passes = measured(mesh, workload, bodies, methods, concurrency, options.rounds)
                seen = compare(passes)
                print("\n".join(lines(workload, concurrency, seen)), flush=True)
                found.setdefault(workload, {})[str(concurrency)] = seen
    figures["cold"] = [name for name in found if name in WORKLOADS and WORKLOADS[name].cold]
    figures["workloads"] = found
    figures["missed"] = missed(found)
    return figures


def method(label: str) -> Method:
    chosen, plus, _ = label.partition("+trees")
    name, colon, longest = chosen.partition(":")
    length = {"num_speculative_tokens": int(longest)} if colon else {}
    return Method(label, {"method": name} | length | ({"trees": True} if plus else {}))


def settings(options: argparse.Namespace, store: str) -> dict[str, Any]:
    """The default server with nothing learned yet."""
    told = {"model": options.model, "served_model_name": NAME, "dtype": options.dtype, "store_dir": store}
    return told | dict(each.split("=", 1) for each in options.setting)


def requests_of(workload: str, count: int) -> list[Body]:
    if workload in WORKLOADS:
        return WORKLOADS[workload].requests(count, SEED)
    return from_lines(Path(workload), count)


# Sending --------------------------------------------------------------------------------------------------


def warm_up(mesh: RunningMesh, methods: Sequence[Method]) -> None:
    """Whatever is compiled or loaded at first use."""
    for name in WORKLOADS:
        for body in requests_of(name, 1):
            for each in methods:
                send(mesh, {**body, "max_tokens": 48}, each, "warm up")


def measured(
    mesh: RunningMesh, workload: str, bodies: list[Body], methods: Sequence[Method], concurrency: int, rounds: int
) -> dict[str, list[Seen]]:
    """Method -> its passes, round by round. Who goes first changes."""
    passes: dict[str, list[Seen]] = {each.label: [] for each in methods}
    for turn in range(rounds):
        salts = {each.label: f"{workload} {concurrency} {turn} {each.label}" for each in methods}
        if concurrency == 1:
            heard: dict[str, list[Heard]] = {each.label: [] for each in methods}
            for number, body in enumerate(bodies):
                for each in rotated(methods, turn + number):
                    salt = salt_of(workload, salts[each.label], number)
                    heard[each.label].append(send(mesh, body, each, salt))
            for label, answers in heard.items():
                passes[label].append(Seen(answers, sum(each.seconds for each in answers)))
        else:
            for each in rotated(methods, turn):
                own = [salt_of(workload, salts[each.label], number) for number in range(len(bodies))]
                passes[each.label].append(block(mesh, bodies, each, own, concurrency))
    return passes


def rotated(methods: Sequence[Method], by: int) -> list[Method]:
    at = by % len(methods)
    return [*methods[at:], *methods[:at]]


def block(mesh: RunningMesh, bodies: list[Body], how: Method, salts: list[str], concurrency: int) -> Seen:
    with ThreadPoolExecutor(concurrency) as callers:
        heard = list(callers.map(lambda body, salt: send(mesh, body, how, salt), bodies, salts))
    return Seen(heard, max(each.ended for each in heard) - min(each.sent for each in heard))


def send(mesh: RunningMesh, body: Body, how: Method, salt: str) -> Heard:
    return listen(mesh.port, {**body, "model": NAME, "speculation": how.speculation, "cache_salt": salt})


# Comparing ------------------------------------------------------------------------------------------------


def compare(passes: dict[str, list[Seen]]) -> dict[str, Any]:
    """By method; the first one's texts are what the others' are held to, and naive's times where it was measured."""
    base = NAIVE if NAIVE in passes else next(iter(passes))
    reference = [each.text for each in passes[base][0].heard]
    # Counted once: a stop text may end a step in the middle, and then what was generated isn't what is read.
    tokens = [each.tokens for each in passes[base][0].heard]
    return {label: judged(seen, passes[base], reference, tokens) for label, seen in passes.items()}


def judged(seen: list[Seen], base: list[Seen], reference: list[str], tokens: list[int]) -> dict[str, Any]:
    heard = [each for one in seen for each in one.heard]
    drafted, accepted = sum(each.drafted for each in heard), sum(each.accepted for each in heard)
    generated = sum(each.tokens for each in heard)
    decoded = sum(each.decode_seconds for each in heard)
    total = sum(tokens) * len(seen)
    return {
        "texts_differ": sum(each.text != text for one in seen for each, text in zip(one.heard, reference, strict=True)),
        "decode": ratio(seen, base, "decode_seconds"),
        "request": ratio(seen, base, "seconds"),
        "throughput": round(sum(one.seconds for one in base) / sum(one.seconds for one in seen), 3),
        "decode_tokens_per_second": round((total - len(heard)) / decoded, 1),
        "tokens_per_second": round(total / sum(one.seconds for one in seen), 1),
        "tokens_per_answer": round(sum(tokens) / len(tokens)),
        "tokens_per_step": round(sum(each.given for each in heard) / max(1, sum(each.steps for each in heard)), 2),
        "accepted_of_drafted": round(accepted / max(1, drafted), 3),
        "drafted_per_token": round(drafted / max(1, generated), 2),
    }


def ratio(seen: list[Seen], base: list[Seen], what: str) -> list[float]:
    """[geometric mean, low, high] of how many times faster, 95 % of a bootstrap over requests."""
    logs = np.array(
        [
            [
                math.log(getattr(slow, what) / getattr(fast, what))
                for fast, slow in zip(ours.heard, theirs.heard, strict=True)
            ]
            for ours, theirs in zip(seen, base, strict=True)
        ]
    ).mean(0)
    chance = np.random.default_rng(SEED)
    means = chance.choice(logs, (RESAMPLES, len(logs))).mean(1)
    return [round(math.exp(each), 3) for each in (logs.mean(), *np.percentile(means, (2.5, 97.5)))]


def missed(found: dict[str, dict[str, Any]]) -> list[str]:
    told = []
    for workload, by_concurrency in found.items():
        for concurrency, seen in by_concurrency.items():
            where = f"{workload}, {concurrency} at a time"
            told += [
                f"{where}: {figures['texts_differ']} texts of {label} differ"
                for label, figures in seen.items()
                if figures["texts_differ"]
            ]
            if AUTO in seen:
                told += [f"{where}: auto {each}" for each in auto_missed(workload, int(concurrency), seen)]
    return told


def auto_missed(workload: str, concurrency: int, seen: dict[str, Any]) -> list[str]:
    """One stream is judged by what its reader sees while it flows; several by all tokens in all of the time."""
    reached = {
        label: figures["decode"][0] if concurrency == 1 else figures["throughput"] for label, figures in seen.items()
    }
    bar = ONE_STREAM_BARS.get(workload, NEVER_UNDER) if concurrency == 1 else NEVER_UNDER
    told = [f"is {reached[AUTO]} x naive, the bar is {bar}"] if reached[AUTO] < bar else []
    fixed = {label: each for label, each in reached.items() if label != AUTO}
    best = max(fixed, key=lambda label: fixed[label])
    if reached[AUTO] < OF_THE_BEST * fixed[best]:
        told.append(f"is {reached[AUTO] / fixed[best]:.3f} x {best}, the bar is {OF_THE_BEST}")
    return told


def lines(workload: str, concurrency: int, seen: dict[str, Any]) -> list[str]:
    """A table to look at while it runs."""
    head = f"{workload}, {concurrency} at a time"
    found = [
        f"{head:<28}{'decode x':>22}{'request x':>11}{'in all x':>10}{'tok/s':>8}{'tok/step':>10}{'of drafted':>12}"
    ]
    for label, figures in seen.items():
        middle, low, high = figures["decode"]
        found.append(
            f"  {label:<26}{middle:>7.2f} ({low:.2f}..{high:.2f}) {figures['request'][0]:>10.2f}"
            f"{figures['throughput']:>10.2f}{figures['decode_tokens_per_second']:>8.0f}{figures['tokens_per_step']:>10.2f}"
            f"{figures['accepted_of_drafted']:>12.2f}" + (" TEXTS DIFFER" if figures["texts_differ"] else "")
        )
    return found
