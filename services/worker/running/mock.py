"""A runner that invents tokens by profile: for tests, and for measuring everything around a model. No torch.

The text is a pure function of (profile seed, request seed, position, token before), so it is the same in any
batch, with any drafts and on any attempt. Most tokens follow a cycle, which drafts can guess; `acceptance` is
how often the text stays on it. Of the sampling parameters it knows seed (when sampled) and min_tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, fields
from typing import Any

from services.api.messages import TokenLogprob, TopToken
from services.worker.running.runner import Meanwhile, StepWork, Verdict, nothing_meanwhile
from services.worker.scheduling.sequence import Sequence

MASK_64 = (1 << 64) - 1
CYCLE = 32  # tokens
FIRST = 100  # the lowest id of the cycle: above the special tokens of the usual tokenizers


class MockFailure(Exception):
    """The failure that `crash_every` asks for."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What the mock pretends. Keys of the setting mock_profile."""

    step_ms: float = 0.0
    row_us: float = 0.0
    acceptance: float = 0.7
    fail_every: int = 0  # each so many sequences one is failed by the engine, after its first token
    crash_every: int = 0  # at each so many steps the whole engine fails
    eos_every: int = 0  # tokens between ends of text, about; 0: none
    vocab_size: int = 49152
    max_context: int = 8192
    eos_token_id: int = 2
    pages: int = 0  # 0: by kv_cache_mb
    seed: int = 0

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Profile:
        """Raises ValueError on what isn't known or can't be."""
        known = {field.name: field for field in fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"mock_profile: unknown key {name!r}; known are {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ValueError(f"mock_profile: {name} must be a number, 0 or more")
        whole = {n: int(v) for n, v in given.items() if isinstance(known[n].default, int)}
        profile = cls(**{**given, **whole})
        if profile.acceptance > 1.0 or profile.vocab_size < FIRST + CYCLE or profile.max_context < 2:
            raise ValueError(
                f"mock_profile: acceptance is at most 1, vocab_size at least {FIRST + CYCLE}, max_context 2"
            )
        if not 0 <= profile.eos_token_id < FIRST:
            raise ValueError(f"mock_profile: eos_token_id must be below {FIRST}")
        return profile


@dataclass(frozen=True, slots=True)
class MockFacts:
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    page_tokens: int
    pages: int
    branch_pages: int = 1 << 20
    path: str = "mock engine"
    strict: bool = True
    vocabulary: str = "mock"


class MockRunner:
    def __init__(
        self,
        profile: Profile,
        *,
        page_tokens: int = 32,
        pages: int = 1024,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.facts = MockFacts(
            profile.vocab_size,
            profile.max_context,
            (profile.eos_token_id,),
            page_tokens,
            profile.pages or pages,
            vocabulary=f"mock-{profile.vocab_size}-{profile.seed}",
        )
        self.profile = profile
        self.steps = 0
        self._sleep = sleep
        self._now = now
        # Of 2**16.
        self._stays = int(profile.acceptance * 65536)

    def step(self, work: Items[StepWork], meanwhile: Meanwhile = nothing_meanwhile) -> list[Verdict | None]:
        profile = self.profile
        began = self._now()
        self.steps += 1
        if profile.crash_every and self.steps % profile.crash_every == 0:
            raise MockFailure(f"step {self.steps} fails, as crash_every asks")
        seconds = self.seconds(work)
        # As on a GPU: what is to be slept passes whatever the thread does meanwhile.
        waiting = meanwhile(seconds > 0)
        end = began + seconds
        if seconds and waiting is not None:
            waiting(lambda: self._now() >= end)
        if seconds and (left := end - self._now()) > 0:
            self._sleep(left)
        return [self._verdict(item) if item.verify else None for item in work]

    def seconds(self, work: Items[StepWork]) -> float:
        """What a step is to take."""
        profile = self.profile
        if not profile.row_us:
            return profile.step_ms / 1e3
        return profile.step_ms / 1e3 + profile.row_us / 1e6 * sum(len(item.tokens) for item in work)

    def copy_page(self, source: int, target: int) -> None:
        """Its text is a function of positions: pages hold nothing."""

    def _verdict(self, item: StepWork) -> Verdict:
        sequence, draft = item.sequence, item.draft
        fail_every = self.profile.fail_every
        if fail_every and sequence.id % fail_every == 0 and sequence.generated:
            return Verdict([], 0, failure="the engine fails this sequence, as fail_every asks")
        last = item.tokens[-1 - len(draft)]
        position = item.start + len(item.tokens) - len(draft)
        key = self._key(sequence)
        earliest_end = sequence.min_length
        accept = sequence.verification.accept_policy
        tokens: list[int] = []
        parents = item.parents or range(-1, len(draft) - 1)
        at = -1
        for place, drafted in enumerate(draft):
            if accept == "reject_all":
                break
            if parents[place] != at:
                continue
            if accept == "normal" and drafted != self._next(key, position, last, earliest_end):
                continue
            tokens.append(drafted)
            at, last = place, drafted
            position += 1
        tokens.append(self._next(key, position, last, earliest_end))
        logprobs = None
        if sequence.sampling.logprobs >= 0:
            logprobs = [_logprob(token, sequence.sampling.logprobs) for token in tokens]
        return Verdict(tokens, len(tokens) - 1, logprobs)

    def _key(self, sequence: Sequence) -> int:
        sampling = sequence.sampling
        seed = sampling.seed + 1 if sampling.temperature > 0 else 0
        return (self.profile.seed * 0x9E3779B97F4A7C15 + seed * 0xC2B2AE3D27D4EB4F) & MASK_64

    def _next(self, key: int, position: int, last: int, earliest_end: int) -> int:
        x = (position * 0xD6E8FEB86659FD93 ^ last * 0xA0761D6478BD642F ^ key) & MASK_64
        x = (x ^ x >> 32) * 0xE7037ED1A0B428DB & MASK_64
        x ^= x >> 29
        profile = self.profile
        if profile.eos_every and position >= earliest_end and (x >> 40) % profile.eos_every == 0:
            return profile.eos_token_id
        if x & 0xFFFF < self._stays:
            return FIRST + (last - FIRST + 1) % CYCLE
        return FIRST + (x >> 16 & 0xFFFFFF) % CYCLE


def _logprob(token: int, count: int) -> TokenLogprob:
    """Made up, like the text: half for the token, half of the rest for each next one."""
    ids = [token, *(FIRST + (token - FIRST + i) % CYCLE for i in range(1, count))][:count]
    return TokenLogprob(logprob=-0.69, top=[TopToken(id=id, logprob=-0.69 * (i + 1)) for i, id in enumerate(ids)])
