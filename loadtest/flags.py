"""The flags of `specmesh load`, and the plan they make."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.arrivals import PROCESSES, Arrivals
from loadtest.ask import CHAT, COMPLETIONS, MAX_TOKENS, LoadRequest, side, speculation
from loadtest.assertions import assertion
from loadtest.client import Origin
from loadtest.objectives import PRESETS, objectives
from loadtest.plan import LoadPlan
from loadtest.workloads import NAMES, workload

# Without warm-up the first side would pay for compilation and connections.
WARM_UP_SIDES = 2
Flag = Callable[..., object]
PATHS = {"auto": "", "chat": CHAT, "completions": COMPLETIONS}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specmesh load",
        description="Load an OpenAI-compatible server and measure it.",
        epilog="docs/use/load.md shows what to do with these.",
        formatter_class=_Defaults,
    )
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="the server")
    # As other commands that talk to a server have it. Of its own name: the word's default would undo it.
    parser.add_argument("--url", dest="url_flag", metavar="URL", help="the same")
    _what_is_asked(parser.add_argument_group("what is asked").add_argument)
    _when(parser.add_argument_group("when (a closed loop unless --rate or a trace is given)").add_argument)
    _compared(parser.add_argument_group("comparing").add_argument)
    _judged(parser.add_argument_group("judging").add_argument)
    _access_and_report(parser.add_argument_group("access and report").add_argument)
    return parser


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows only defaults that are not empty."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


def _what_is_asked(flag: Flag) -> None:
    shown = f"{', '.join(NAMES)}; a .jsonl or .json file; a folder of texts"
    flag("--workload", default="questions", metavar="NAME|PATH", help=shown)
    flag("--prompt", default="", help="ask this every time instead of a workload")
    flag("--instruction", default="", metavar="TEXT", help="what to do with each file of a folder")
    flag("--file-characters", type=_at_least(1), default=12_000, metavar="N", help="of each file of a folder, at most")
    flag("--turns", type=_at_least(0), default=0, metavar="N", help="most turns of a session; 0: all")
    flag("--think", type=_seconds, metavar="S", help="mean pause before a later turn, instead of the workload's")
    flag("--endpoint", choices=tuple(PATHS), default="auto", help="API route; auto: the one the request was made for")
    flag("--model", default="", help="model name; empty: the first of /v1/models")
    flag("--max-tokens", type=_at_least(1), metavar="N", help=f"default: the request's own, or {MAX_TOKENS}")
    flag("--temperature", type=float, metavar="T", help="default: the request's own, or 0 (greedy)")
    flag("--seed", type=int, default=0, help="seed of prompts, arrivals, disconnects and sampling")
    flag("--ignore-eos", action="store_true", help="ignore the end of text and generate --max-tokens")
    flag("--token-ids", action="store_true", help="ask for the token ids of each chunk, for exact times between tokens")
    flag("--speculation", type=_speculation, metavar="HOW", help="off, a method, method:length, or a JSON object")
    flag("--extra-body", type=_json_object, default={}, metavar="JSON", help="more fields of the body")


def _when(flag: Flag) -> None:
    flag("--concurrency", type=_list(_at_least(1)), default="1", metavar="N[,N...]", help="callers; several: a sweep")
    flag("--rate", type=_list(_rate), default="0", metavar="R[,R...]", help="open loop: requests per second")
    flag("--arrivals", choices=PROCESSES, default="poisson", help="of the open loop; trace: times from the file")
    flag("--burstiness", type=float, default=2.0, metavar="C", help="gamma: coefficient of variation; 1 is poisson")
    flag("--trace-speed", type=float, default=1.0, metavar="X", help="replay a trace X times faster")
    flag(
        "--requests",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="requests at each load; 0: set by --duration or the load",
    )
    flag("--duration", type=_seconds, default=0.0, metavar="S", help="send no request after S seconds; 0: no limit")
    flag("--warmup", type=_at_least(0), metavar="N", help="requests that are not measured; default 0, with --ab 2")
    flag("--disconnect", type=float, default=0.0, metavar="P", help="share of requests to disconnect after a chunk")
    flag("--timeout", type=_seconds, default=600.0, metavar="S", help="longest duration of a request, in seconds")


def _compared(flag: Flag) -> None:
    shown = "two or more sides, each name=value[;name=value]: speculation=off, speculation=ngram:5, url=..., any field"
    flag("--ab", nargs="+", default=[], metavar="SIDE", help=shown)
    flag("--ab-block", type=_at_least(0), default=0, metavar="N", help="requests per turn of a side; 0: by the load")
    flag("--ab-pause", type=_seconds, default=0.0, metavar="S", help="seconds before each turn of a side")
    flag("--shared-cache", action="store_true", help="send no cache_salt: sides share caches, and edit isn't cold")
    flag("--cold", action="store_true", help="a cache_salt for each session: nothing is drafted from other answers")


def _judged(flag: Flag) -> None:
    shown = f"limits like ttft:0.5,itl:50ms, or one of {', '.join(PRESETS)}"
    flag("--slo", default="", metavar="LIMITS", help=shown)
    claim = "exit with 1 if this is false, e.g. 'p99(ttft)<0.5'; repeatable"
    flag("--assert", dest="assertions", action="append", default=[], metavar="CLAIM", help=claim)
    flag("--max-error-rate", type=float, default=0.0, metavar="X", help="exit with 1 above this share of failures")


def _access_and_report(flag: Flag) -> None:
    flag("--api-key", default="", help="sent as Bearer")
    flag("--metrics-url", action="append", default=[], metavar="URL", help="Prometheus page to read; repeatable")
    flag("--json", type=Path, metavar="FILE", help="write all figures; - for the terminal")
    flag("--csv", type=Path, metavar="FILE", help="write a line for each run; - for the terminal")
    flag("--html", type=Path, metavar="FILE", help="write a report with plots, one file")
    flag("--records", type=Path, metavar="FILE", help="write a line of JSON for each request")
    flag("--quiet", action="store_true", help="print the verdict only")


def plan_of(options: argparse.Namespace) -> LoadPlan:
    """Raises ValueError for flags that contradict each other."""
    _check(options)
    asked = workload(
        options.workload, options.seed, prompt=options.prompt, instruction=options.instruction,
        most_characters=options.file_characters, turns=options.turns, think=options.think,
    )  # fmt: skip
    if options.arrivals == "trace" and not asked.times:
        raise ValueError("--arrivals trace needs a --workload file in which every line has a timestamp")
    points = options.rate if options.rate[0] else options.concurrency
    requests = options.requests
    if options.arrivals == "trace":
        points = []
        requests = min(requests or len(asked.times), len(asked.times))
    arrivals = Arrivals(
        concurrency=options.concurrency[0], rate=options.rate[0], process=options.arrivals, requests=requests,
        duration=options.duration, seed=options.seed, burstiness=options.burstiness, times=asked.times,
        speed=options.trace_speed,
    )  # fmt: skip
    ask = LoadRequest(
        path=PATHS[options.endpoint], model=options.model, max_tokens=options.max_tokens,
        temperature=options.temperature, seed=options.seed, ignore_eos=options.ignore_eos,
        token_ids=options.token_ids,        speculation=options.speculation, extra=options.extra_body,
    )  # fmt: skip
    return LoadPlan(
        url=options.url, ask=ask, workload=asked, arrivals=arrivals,
        points=tuple(points) if len(points) > 1 else (), sides=tuple(side(text) for text in options.ab),
        block=options.ab_block, pause=options.ab_pause, shared_cache=options.shared_cache, cold=options.cold,
        limits=objectives(options.slo) if options.slo else None, api_key=options.api_key, timeout=options.timeout,
        warmup=WARM_UP_SIDES * bool(options.ab) if options.warmup is None else options.warmup,
        disconnect=options.disconnect, keep_text=len(options.ab) > 1,        metrics_urls=tuple(options.metrics_url),
    )  # fmt: skip


def _check(options: argparse.Namespace) -> None:
    if not 0 <= options.disconnect <= 1:
        raise ValueError("--disconnect is a share between 0 and 1")
    if options.timeout <= 0 or options.trace_speed <= 0 or options.burstiness <= 0:
        raise ValueError("--timeout, --trace-speed and --burstiness must be above 0")
    if len(options.rate) > 1 and not all(options.rate):
        raise ValueError("--rate 0 is no rate")
    if options.rate[0] and options.concurrency != [1]:
        raise ValueError("--rate and --concurrency are two kinds of load: one of them")
    if options.ab and (len(options.ab) < 2 or len(set(options.ab)) < len(options.ab)):
        raise ValueError("--ab needs two sides or more, all different")
    if options.cold and options.shared_cache:
        raise ValueError("--cold and --shared-cache contradict each other: one of them")
    for text in options.assertions:
        assertion(text)
    for url in (options.url, *(each.url for each in map(side, options.ab) if each.url)):
        Origin.of(url)


# Kinds of value -------------------------------------------------------------------------------------------


def _at_least(low: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}")
        return value

    return whole_number


def _seconds(text: str) -> float:
    return _not_negative(text, "seconds")


def _rate(text: str) -> float:
    return _not_negative(text, "requests a second")


def _not_negative(text: str, what: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of {what}")
    return value


def _list(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def numbers(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    return numbers


def _speculation(text: str) -> dict[str, Any]:
    try:
        return speculation(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        raise argparse.ArgumentTypeError(f"not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value
