"""Ten times what the server can carry, from two API keys: what is still answered, how refusals come, and whether the
modest key is served as when it is alone.

1. Callers who ask without a pause, at several numbers of them: the most tokens a second is the best goodput.
2. The modest key alone, with requests at a fixed rate: a quarter of that best.
3. Both keys at once, together ten times the best rate, for `--minutes`: the modest key as before, the greedy one the
   rest. Requests come whether others are answered or not, as from many users.

Goodput counts tokens of answers that end well, in the second in which they came. Nothing is drafted from other answers,
and no prompt is cached: each request has a `cache_salt` of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bench.running_mesh import running_mesh
from bench.shown import Shown
from loadtest.arrivals import Arrivals, drive
from loadtest.ask import CHAT, LoadRequest
from loadtest.client import Client
from loadtest.measure import spread
from loadtest.outcome import Outcome
from loadtest.token_times import per_chunk, tokens_of
from loadtest.watch import Watch
from loadtest.workloads import workload

HELP = "10 times the load that can be carried, from two API keys: goodput, refusals, the modest key's share"
NAME = "measured"
KEYS = {"greedy": "greedy-key", "modest": "modest-key"}
MODEST = 0.25  # of the best rate
RAMP_S = 5.0  # of each part, not measured: the first answers
REFUSED = ("http_429", "http_503")
GOODPUT_BAR, REFUSAL_BAR_S, MODEST_BAR = 0.9, 0.1, 0.9
SHOWN = (
    Shown("Ten times the load that can be carried", "overload",
          {"/best>tokens/s": "best tokens/s", "tokens/s": "tokens/s overloaded", "of best": "of best",
           "refused": "refused", "refusals, ms>p99": "refused within, p99, ms", "failed": "failed",
           "/keys>modest>of alone": "modest key, of alone"},
          "Two API keys; the modest one asks for a quarter of what can be carried, the other for the rest."),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=5.0, help="of overload (default 5)")
    parser.add_argument("--times", type=float, default=10.0, help="the best rate (default 10)")
    parser.add_argument("--steps", default="8,16,32,64", help="callers at a time, comma-separated (default 8,16,32,64)")
    parser.add_argument("--step-seconds", type=float, default=30.0, help="of each of them (default 30)")
    parser.add_argument("--alone-seconds", type=float, default=60.0, help="of the modest key alone (default 60)")
    parser.add_argument("--workload", default="chat", help="of specmesh load (default chat)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default 64)")
    parser.add_argument("--seed", type=int, default=1, help="of requests and of when they come (default 1)")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the server")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings = {"api_keys": ",".join(KEYS.values())} | dict(each.split("=", 1) for each in options.setting)
    with running_mesh(served_model_name=NAME, **settings) as mesh:
        asyncio.run(Overload(mesh.url, options).measured())
    figures: dict[str, Any] = options.so_far
    return figures | {"missed": missed(figures)}


class Overload:
    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self._url, self._options = url, options
        self._salt = secrets.token_hex(4)
        self._workload = workload(options.workload, options.seed)
        self._next = 0

    async def measured(self) -> None:
        found, options = self._options.so_far, self._options
        found["steps"] = {}
        answers: list[Outcome] = []
        for callers in map(int, options.steps.split(",")):
            outcomes = await self._load("greedy", Arrivals(concurrency=callers, duration=options.step_seconds))
            answers += outcomes
            found["steps"][str(callers)] = round(goodput(outcomes, options.step_seconds), 1)
            print(f"{callers} callers: {found['steps'][str(callers)]} tokens/s", flush=True)
        rate = found["best"] = best(found["steps"], answers)
        modest = Arrivals(rate=MODEST * rate["requests/s"], process="constant", seed=options.seed)
        alone = await self._load("modest", _lasting(modest, options.alone_seconds))
        found["keys"] = {"modest": {"alone": told(alone, options.alone_seconds)}}
        seconds = options.minutes * 60
        greedy = Arrivals(rate=(options.times - MODEST) * rate["requests/s"], seed=options.seed)
        by_key: dict[str, list[Outcome]] = {name: [] for name in KEYS}
        async with Watch(asyncio.get_running_loop().time) as watch:
            try:
                await asyncio.gather(
                    self._load("modest", _lasting(modest, seconds), by_key["modest"]),
                    self._load("greedy", _lasting(greedy, seconds), by_key["greedy"]),
                )
            finally:
                conclude(found, by_key, seconds)
        found["overload"]["harness late, ms"] = _ms(spread(watch.lags))

    async def _load(self, key: str, arrivals: Arrivals, into: list[Outcome] | None = None) -> list[Outcome]:
        """Until all that was admitted has ended. Times of outcomes are seconds after the beginning."""
        client = Client(self._url, api_key=KEYS[key])
        outcomes = [] if into is None else into
        begin = client.now()

        async def send(_: int, scheduled: float) -> None:
            index, self._next = self._next, self._next + 1
            ask = LoadRequest(CHAT, NAME, self._options.tokens, ignore_eos=True, own_salt=self._salt)
            path, body = ask.request(dict(self._workload.session(index).turns[0].body), index)
            outcomes.append(since(begin, await client.stream(path, body, scheduled=scheduled)))

        try:
            await drive(arrivals, send, now=client.now)
        finally:
            client.close()
        return outcomes


def _lasting(arrivals: Arrivals, seconds: float) -> Arrivals:
    return Arrivals(rate=arrivals.rate, process=arrivals.process, seed=arrivals.seed, duration=seconds)


def since(begin: float, outcome: Outcome) -> Outcome:
    for name in ("scheduled", "started", "ended", "first", "last"):
        if (at := getattr(outcome, name)) is not None:
            setattr(outcome, name, at - begin)
    return outcome


# Figures ----------------------------------------------------------------------------------------------------


def goodput(outcomes: Iterable[Outcome], seconds: float) -> float:
    """Tokens a second from RAMP_S to `seconds`, of answers that end well; those are read to their end."""
    begin = min(RAMP_S, seconds / 2)
    found = 0
    for each in outcomes:
        if each.ok and each.first is not None:
            # The first chunk's gap says that it is the first one.
            at = each.first + np.concatenate([[0.0], np.cumsum(each.gaps[1:], dtype=np.float64)])
            found += int(per_chunk(each)[(at >= begin) & (at < seconds)].sum())
    return found / (seconds - begin)


def best(steps: dict[str, float], answers: Sequence[Outcome]) -> dict[str, Any]:
    callers = max(steps, key=lambda each: steps[each])
    tokens = [tokens_of(each) for each in answers if each.ok]
    a_request = sum(tokens) / max(1, len(tokens))
    if not steps[callers] or not a_request:
        raise RuntimeError(f"nothing was answered: {Counter(each.error for each in answers)}")
    return {"callers": int(callers), "tokens/s": steps[callers], "requests/s": round(steps[callers] / a_request, 3)}


def told(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    refused = [each for each in outcomes if each.error in REFUSED]
    answered = [each for each in outcomes if each.ok]
    return {
        "tokens/s": round(goodput(answered, seconds), 1),
        "asked": len(outcomes), "answered": len(answered), "refused": len(refused),
        "failed": len(outcomes) - len(answered) - len(refused),
        "errors": dict(Counter(each.error for each in outcomes if each.error)),
        "first token, s": _rounded(spread(each.first - each.scheduled for each in answered if each.first is not None)),
    }  # fmt: skip


def conclude(found: dict[str, Any], by_key: dict[str, list[Outcome]], seconds: float) -> None:
    everything = [each for outcomes in by_key.values() for each in outcomes]
    refused = [each for each in everything if each.error in REFUSED]
    took = [each.ended - each.started for each in refused]
    whole = told(everything, seconds)
    found["overload"] = whole | {
        "seconds": seconds,
        "of best": round(whole["tokens/s"] / found["best"]["tokens/s"], 3),
        "refusals, ms": _ms(spread(took)),
        "refused late": sum(each > REFUSAL_BAR_S for each in took),
        "without Retry-After": sum(not each.retry_after for each in refused),
    }
    for name, outcomes in by_key.items():
        found["keys"][name] = found["keys"].get(name, {}) | told(outcomes, seconds)
    modest = found["keys"]["modest"]
    modest["of alone"] = round(modest["tokens/s"] / max(0.1, modest["alone"]["tokens/s"]), 3)


def missed(figures: dict[str, Any]) -> list[str]:
    over, modest = figures["overload"], figures["keys"]["modest"]
    late, refused = over["refused late"], over["refused"]
    bars = {
        f"goodput is {over['of best']} of the best, the bar is {GOODPUT_BAR}": over["of best"] < GOODPUT_BAR,
        f"{over['failed']} requests failed: {over['errors']}": over["failed"],
        f"{late} of {refused} refusals took more than {REFUSAL_BAR_S:g} s": late,
        f"{over['without Retry-After']} refusals came without Retry-After": over["without Retry-After"],
        f"the modest key got {modest['of alone']} of its goodput alone, the bar is {MODEST_BAR}":
            modest["of alone"] < MODEST_BAR,
    }  # fmt: skip
    return [what for what, is_missed in bars.items() if is_missed]


def _ms(seconds: dict[str, Any] | None) -> dict[str, float] | None:
    return seconds and {name: round(1e3 * seconds[name], 1) for name in ("p50", "p99", "max")}


def _rounded(seconds: dict[str, Any] | None) -> dict[str, float] | None:
    return seconds and {name: round(seconds[name], 2) for name in ("p50", "p99", "max")}
