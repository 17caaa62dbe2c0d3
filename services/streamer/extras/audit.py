"""The audit: a share of the requests is generated again without drafts, and the two texts are compared token by token.

Speculation promises not to change the text; this checks it on the machine and with the requests of a running mesh.
State and decisions only: no clock, no sockets. replays.py sends what `begin` returns and reports what comes back.

    ended ──(share, exact, drafts verified)──▶ waiting ──▶ replayed ──▶ same | different
                                                  ▲  │         │
                                                  │  └▶ dropped├─▶ given up
                                                  └────────────┘ interrupted: compared tokens need no second comparison

A replay is the same request with method naive, from the ids of the prompt on, under a cache salt that nobody else has.
So it checks drafting, verification, roll-back, batch mates, preemption, retries and cached pages. It doesn't check what
both runs share: the weights in memory, the kernels for a row without a draft, and the text around the tokens.

The log says where two texts differ, never what they say.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from msgspec.structs import replace

from services.api.messages import MOST_PRIORITY, Generate, ModelCard, Speculation
from services.api.methods import NAIVE
from services.api.sampling import Sampling
from services.streamer.choice.generation import Choice
from services.streamer.choice.quarantine import GUILTY_ALONE

log = logging.getLogger("specmesh.streamer")

Result = Literal["same", "different", "given_up", "dropped"]
RESULTS: tuple[Result, ...] = ("same", "different", "given_up", "dropped")
# Bounds of the waiting list: requests, and their tokens in all. The oldest is dropped for the newest.
MAX_WAITING = 64
MAX_WAITING_TOKENS = 65536
# A replay that was interrupted this often is given up, so that others get a turn.
MAX_TRIES = 8


@dataclass(slots=True)
class Answered:
    """A request that ended, and how far a replay of it has come."""

    request_id: str
    prompt: list[int]
    tokens: list[int]  # without the stop id that ended it
    stop_token: int | None
    sampling: Sampling
    speculation: Speculation
    method: str
    strategy: str
    # What ran the model, and whether its rows have the same bits in any batch.
    path: str = ""
    strict: bool = True
    compared: int = 0
    tries: int = 0
    deaths: int = 0  # of workers that ran a replay of it

    @property
    def size(self) -> int:
        return len(self.prompt) + len(self.tokens)

    def replay(self, salt: str) -> Generate:
        """Its next attempt. It continues behind the tokens already compared, and ends where the answer did."""
        length = len(self.tokens) + (self.stop_token is not None)
        return Generate(
            request_id=f"{self.request_id}-audit",
            attempt=self.tries,
            token_ids=self.prompt + self.tokens[: self.compared],
            prompt_tokens=len(self.prompt),
            sampling=dataclasses.replace(self.sampling, max_tokens=length, logprobs=-1, prompt_logprobs=-1),
            speculation=without_drafts(self.speculation),
            priority=MOST_PRIORITY,
            # Under a salt of its own it finds no cached pages, which it would otherwise trust instead of check.
            cache_salt=salt,
        )


def answered(choice: Choice, method: str, card: ModelCard) -> Answered:
    return Answered(
        request_id=choice.request_id,
        prompt=choice.prompt,
        tokens=choice.tokens,
        stop_token=choice.stop_token,
        sampling=choice.sampling,
        speculation=choice.speculation,
        method=method,
        strategy=choice.verification.strategy,
        path=card.path,
        strict=card.strict,
    )


def without_drafts(speculation: Speculation) -> Speculation:
    """The same verification, so that a sampled request keeps its text."""
    return replace(
        speculation, method=NAIVE, num_speculative_tokens=0, corpora=[], learn=False, return_drafts=False, trees=False
    )


class Audit:
    def __init__(self, share: float = 0.0, threshold: int = 0) -> None:
        """`share` of the requests, 0 to 1. A method is switched off at its difference number `threshold`; 0: never."""
        self.share = share
        self.threshold = threshold
        self.results: dict[tuple[str, Result], int] = {}
        self.compared_tokens = 0
        self.switched_off: set[str] = set()
        self._waiting: deque[Answered] = deque()
        self._waiting_tokens = 0
        self._replayed: Answered | None = None
        self._closed = share <= 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # Requests that ended --------------------------------------------------------------------------------

    def ended(self, choice: Choice, method: str, card: ModelCard) -> None:
        """Kept for a replay if it is in the share, drafts were verified in it, and its text must be the same."""
        if self._closed or not chosen(choice.request_id, self.share):
            return
        if choice.verification.exact and choice.acceptance.verified:
            self._keep(answered(choice, method, card))

    def _keep(self, case: Answered) -> None:
        if case.size > MAX_WAITING_TOKENS:
            self._count(case, "dropped")
            return
        self._waiting.append(case)
        self._waiting_tokens += case.size
        while len(self._waiting) > MAX_WAITING or self._waiting_tokens > MAX_WAITING_TOKENS:
            self._count(self._next(), "dropped")

    def _next(self) -> Answered:
        case = self._waiting.popleft()
        self._waiting_tokens -= case.size
        return case

    # The replay -----------------------------------------------------------------------------------------

    def begin(self, salt: str) -> Generate | None:
        """What to send now; None: nothing waits. `salt` must be a new secret."""
        assert self._replayed is None, "one replay at a time"
        if not self._waiting:
            return None
        case = self._replayed = self._next()
        case.tries += 1
        return case.replay(salt)

    def tokens(self, ids: Iterable[int]) -> bool:
        """The next tokens of the replay. True: it differs, and need not go on."""
        case = self._replayed
        assert case is not None
        for token in ids:
            self.compared_tokens += 1
            if case.compared == len(case.tokens) or case.tokens[case.compared] != token:
                self._differs(case)
                return True
            case.compared += 1
        return False

    def finished(self, stop_token: int | None) -> None:
        case = self._replayed
        assert case is not None
        if case.compared == len(case.tokens) and stop_token == case.stop_token:
            self._end("same")
        else:
            self._differs(case)

    def failed(self) -> None:
        self._end("given_up")

    def interrupted(self) -> None:
        """A live request came, or the worker was lost: it is the first to be tried again."""
        case = self._replayed
        assert case is not None
        if case.tries < MAX_TRIES and not self._closed:
            self._waiting.appendleft(case)
            self._waiting_tokens += case.size
            self._replayed = None
        else:
            self._end("dropped" if self._closed else "given_up")

    def worker_died(self) -> None:
        """While it ran the replay, and nothing else of this streamer: the replay may be what killed it."""
        case = self._replayed
        assert case is not None
        case.deaths += 1
        if case.deaths >= GUILTY_ALONE:
            self._end("given_up")
        else:
            self.interrupted()

    def close(self) -> None:
        """The process drains: nothing is taken or begun any more."""
        while self._waiting:
            self._count(self._next(), "dropped")
        self._closed = True

    def _differs(self, case: Answered) -> None:
        self._end("different")
        log.warning(
            "audit: without drafts the answer to %s differs from token %d on (method %s, strategy %s, %s)",
            case.request_id, case.compared, case.method, case.strategy, case.path,
        )  # fmt: skip
        # Where rows depend on their batch, a difference is no method's fault.
        if not case.strict or not self.threshold or case.method in self.switched_off:
            return
        if (differences := self.results[case.method, "different"]) >= self.threshold:
            self.switched_off.add(case.method)
            log.error(
                "audit: method %s is switched off until this streamer restarts: %d answers differed",
                case.method, differences,
            )  # fmt: skip

    def _end(self, result: Result) -> None:
        assert self._replayed is not None
        self._count(self._replayed, result)
        self._replayed = None

    def _count(self, case: Answered, result: Result) -> None:
        key = (case.method, result)
        self.results[key] = self.results.get(key, 0) + 1


def chosen(request_id: str, share: float) -> bool:
    """The same decision for the same id, so that a test or a person can repeat it."""
    digest = blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
