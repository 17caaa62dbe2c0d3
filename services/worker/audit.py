"""The audit: a share of the requests is computed again without drafts, in idle time, and the texts are compared.

Law 3 is what speculation promises; this looks whether it is kept, with the requests and on the machine of those who
were promised it. State and decisions only: no torch, no clock, no sockets, no scheduler. step_loop.py tells it of
requests that ended, asks it for a replay when there is nothing else to do, and hands it what becomes of that.

    ended ──(share, exact, drafts verified)──▶ waiting ──▶ replayed ──▶ same | different
                                                  ▲  │         │
                                                  │  └ dropped ├─▶ given up
                                                  └────────────┘ a live request came: what agreed so far stays proven

What a replay computes itself: everything, from the ids of the prompt on, each token in a step of its own, in pages
that nobody has written before. So drafts, their verification, rolling back, batch mates, preemption, and cached or
copied pages are checked. Not checked is what both have in common: the weights in memory and the kernels for a plain
row, and what comes before and after the target.

Nothing of a text is logged: where it differs, never what it says.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from msgspec.structs import replace

from services.api.messages import MOST_PRIORITY, Generate
from services.worker.scheduling.events import Arrived, Cancelled, Emit, Event, Fail, Finish, SwitchOff, is_replay
from services.worker.scheduling.limits import NAIVE
from services.worker.scheduling.sequence import Sequence

log = logging.getLogger("specmesh.worker")

Result = Literal["same", "different", "given_up", "dropped"]
RESULTS: tuple[Result, ...] = ("same", "different", "given_up", "dropped")
# What may wait: requests, and their tokens in all. The oldest is dropped for the newest.
MOST_WAITING = 64
MOST_TOKENS = 65536
# How often a replay is begun: where live requests leave too little time, others are tried.
MOST_TRIES = 8


@dataclass(slots=True)
class Case:
    """A request that ended, and how far a replay has come to the same."""

    generate: Generate
    tokens: list[int]  # what it was given, without the stop id that ended it
    stop_token: int | None
    method: str
    strategy: str
    proven: int = 0
    tries: int = 0

    @property
    def size(self) -> int:
        return len(self.generate.token_ids) + len(self.tokens)

    def replay(self, salt: str) -> Generate:
        """Its next attempt, without drafts. It goes on behind what is proven already, and ends where the text did
        that it is compared with: also that of a request that was cancelled (its reader found a stop string)."""
        generate = self.generate
        before = len(generate.token_ids) - generate.prompt_tokens
        longest = before + len(self.tokens) + (self.stop_token is not None)
        return replace(
            generate,
            token_ids=generate.token_ids + self.tokens[: self.proven],
            sampling=replace(generate.sampling, max_tokens=longest, logprobs=-1),
            speculation=replace(generate.speculation, method=NAIVE, num_speculative_tokens=0),
            priority=MOST_PRIORITY,
            # Pages of others aren't found under it: they would be believed instead of checked.
            cache_salt=salt,
        )


class Audit:
    def __init__(self, share: float = 0.0, threshold: int = 0, *, salt: str = "", path: str = "") -> None:
        """`share` of the requests, 0 to 1. A proposer is switched off by its difference number `threshold`; 0: never.
        `salt` is a secret of this process: who knows a salt can find out what was computed under it."""
        assert salt or not share, "a replay that finds the pages of others checks nothing"
        self.share = share
        self.threshold = threshold
        self.results: dict[tuple[str, Result], int] = {}
        self.compared_tokens = 0
        self.switched_off: set[str] = set()
        self._salt = salt
        self._path = path
        self._waiting: deque[Case] = deque()
        self._waiting_tokens = 0
        self._replayed: Case | None = None
        self._stream = 0
        self._closed = share <= 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # Requests that ended --------------------------------------------------------------------------------

    def ended(self, sequence: Sequence) -> None:
        """Kept for a replay if it is one of the share, drafts were verified in it, and its text must be the same."""
        if self._closed or is_replay(sequence.stream) or not chosen(sequence.request_id, self.share):
            return
        if not sequence.verification.exact or not sequence.stats().drafted:
            return
        self._keep(
            Case(
                generate=sequence.generate,
                tokens=sequence.token_ids[len(sequence.generate.token_ids) :],
                stop_token=sequence.stop_token,
                method=sequence.method,
                strategy=sequence.verification.strategy,
            )
        )

    def _keep(self, case: Case) -> None:
        if case.size > MOST_TOKENS:
            self._count(case, "dropped")
            return
        self._waiting.append(case)
        self._waiting_tokens += case.size
        while len(self._waiting) > MOST_WAITING or self._waiting_tokens > MOST_TOKENS:
            self._count(self._next(), "dropped")

    def _next(self) -> Case:
        case = self._waiting.popleft()
        self._waiting_tokens -= case.size
        return case

    # Replays --------------------------------------------------------------------------------------------

    def begin(self, at: float) -> Arrived | None:
        """There is nothing else to do: what to compute now, if anything waits. `at`: the time."""
        assert self._replayed is None, "one replay at a time"
        if not self._waiting:
            return None
        case = self._replayed = self._next()
        case.tries += 1
        self._stream -= 1
        return Arrived(case.replay(self._salt), self._stream, None, at)

    def interrupt(self) -> list[Event]:
        """Live work has come: the replay gives way, and waits as the first for the next idle moment."""
        case = self._replayed
        if case is None:
            return []
        if case.tries < MOST_TRIES:
            self._waiting.appendleft(case)
            self._waiting_tokens += case.size
            self._replayed = None
        else:
            self._end("given_up")
        return [Cancelled(self._stream)]

    def close(self) -> list[Event]:
        """The process drains, or its engine is gone: nothing is replayed any more."""
        stopped: list[Event] = [] if self._replayed is None else [Cancelled(self._stream)]
        if self._replayed is not None:
            self._end("dropped")
        while self._waiting:
            self._count(self._next(), "dropped")
        self._closed = True
        return stopped

    def hear(self, item: Emit | Finish | Fail) -> list[Event]:
        """Something became of a replay. What the scheduler is to be told."""
        case = self._replayed
        if case is None or item.stream != self._stream:
            # The rest of one that is over.
            return []
        if isinstance(item, Emit):
            return self._compare(case, item.tokens.ids)
        if isinstance(item, Fail):
            self._end("given_up")
        elif case.proven == len(case.tokens) and item.finished.stop_token == case.stop_token:
            self._end("same")
        else:
            return self._differs(case)
        return []

    def _compare(self, case: Case, ids: Iterable[int]) -> list[Event]:
        for token in ids:
            self.compared_tokens += 1
            if case.proven == len(case.tokens) or case.tokens[case.proven] != token:
                return [Cancelled(self._stream), *self._differs(case)]
            case.proven += 1
        return []

    def _differs(self, case: Case) -> list[Event]:
        self._end("different")
        method = case.method
        # In the answer as its reader counts, over all attempts.
        position = len(case.generate.token_ids) - case.generate.prompt_tokens + case.proven
        log.warning(
            "audit: without drafts the answer to request %r (attempt %d) differs from token %d on"
            " (proposer %s, strategy %s, %s)",
            case.generate.request_id[:64], case.generate.attempt, position, method, case.strategy, self._path,
        )  # fmt: skip
        differences = self.results[method, "different"]
        if not self.threshold or differences < self.threshold or method in self.switched_off:
            return []
        self.switched_off.add(method)
        log.error("audit: proposer %s is switched off until this process is started anew: %d answers differed",
                  method, differences)  # fmt: skip
        return [SwitchOff(method)]

    def _end(self, result: Result) -> None:
        assert self._replayed is not None
        self._count(self._replayed, result)
        self._replayed = None

    def _count(self, case: Case, result: Result) -> None:
        key = (case.method, result)
        self.results[key] = self.results.get(key, 0) + 1


def chosen(request_id: str, share: float) -> bool:
    """The same answer for the same request, whoever asks: no randomness that a test or a person can't repeat."""
    digest = blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
