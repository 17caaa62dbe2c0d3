"""The streams of a soak: kinds of requests, their twins, and what became of each.

A twin is a request's text as the same mesh says it without drafts and without faults. A caller has requests of one kind
and asks them again and again, every second round with a `cache_salt` of its own: nothing of earlier rounds is cached
or drafted from then.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from loadtest.ask import LoadRequest
from loadtest.outcome import Outcome
from loadtest.workloads import workload
from loadtest.workloads.session import Body

REFUSED = ("http_429", "http_503")
BROKEN = ("closed", "reset", "truncated")
LEAVES_WITHIN = 24  # chunks


class StreamKind(NamedTuple):
    """`share`: callers of 32. `read_pause`: of a slow reader, in seconds."""

    workload: str
    share: int
    temperature: float = 0.0
    leaves: bool = False
    read_pause: float = 0.0
    more: dict[str, Any] = {}  # noqa: RUF012 never changed


KINDS = {
    "chat": StreamKind("chat", 7),
    "sampled": StreamKind("chat", 7, temperature=0.8),
    "edit": StreamKind("edit", 6),
    "tools": StreamKind("agent", 4),
    "schemas": StreamKind("schemas", 3),
    "leaving": StreamKind("chat", 2, leaves=True),
    "slow reader": StreamKind("chat", 2, read_pause=0.2, more={"logprobs": True, "top_logprobs": 5}),
    "long prompt": StreamKind("long-prompt", 1),
}


class SoakRequest(NamedTuple):
    """`number` is of all requests, and decides the seed."""

    number: int
    body: Body
    ask: LoadRequest

    def twin(self) -> tuple[str, bytes]:
        return self.ask.request({**self.body, "speculation": {"off": True}}, self.number)

    def again(self, salt: str) -> tuple[str, bytes]:
        return self.ask.request({**self.body, **({"cache_salt": salt} if salt else {})}, self.number)


class Caller(NamedTuple):
    kind: str
    requests: list[SoakRequest]

    def rounds(self, chance: random.Random) -> Iterator[tuple[SoakRequest, str]]:
        """Without end: a request, and the salt of its round, which may be none."""
        for number in itertools.count():
            salt = f"{self.requests[0].number} {number} {chance.random()}" if number % 2 else ""
            for each in self.requests:
                yield each, salt


def callers(streams: int, each: int, tokens: int, seed: int, model: str) -> list[Caller]:
    """`streams` callers with `each` requests. However few they are, they take the kinds in turns."""
    turns = max(kind.share for kind in KINDS.values())
    names = [name for turn in range(turns) for name, kind in KINDS.items() if turn < kind.share]
    taken: dict[str, Iterator[Body]] = {name: _bodies(kind.workload, seed, name) for name, kind in KINDS.items()}
    numbers = itertools.count()
    found = []
    for name in itertools.islice(itertools.cycle(names), streams):
        kind = KINDS[name]
        ask = LoadRequest("", model, tokens, kind.temperature, seed, extra=kind.more)
        found.append(Caller(name, [SoakRequest(next(numbers), next(taken[name]), ask) for _ in range(each)]))
    return found


def _bodies(name: str, seed: int, kind: str) -> Iterator[Body]:
    # Kinds with the same workload have other requests of it.
    made = workload(name, seed + 1000 * list(KINDS).index(kind))
    return (dict(turn.body) for index in itertools.count() for turn in made.session(index).turns)


# Fates ------------------------------------------------------------------------------------------------------

Fate = Literal["finished", "left", "refused", "lost", "failed"]


def fate(outcome: Outcome, with_streamer: bool) -> Fate:
    """lost      its connection broke with its streamer (`with_streamer`), which was killed, or stopped and therefore
              replaced: nobody could save it
    refused   429 or 503, with Retry-After, before it began
    failed    anything else that isn't an answer: it could have been saved
    """
    if outcome.abandoned:
        return "left"
    if not outcome.error:
        return "finished"
    if outcome.error in REFUSED and outcome.retry_after:
        return "refused"
    return "lost" if outcome.error in BROKEN and with_streamer else "failed"


def is_changed(outcome: Outcome, twin: str) -> bool:
    """What came of an answer that didn't end well must be the twin's beginning."""
    return outcome.text != twin if outcome.ok else not twin.startswith(outcome.text)


def longest_gap(outcome: Outcome) -> float:
    """Without text, from the request on."""
    first = 0.0 if outcome.first is None else outcome.first - outcome.started
    return max([first, *outcome.gaps])
