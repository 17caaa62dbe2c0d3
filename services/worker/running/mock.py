"""A runner that makes up tokens: for tests, and for measuring everything around a model. No torch.

The text is a pure function of (profile seed, request seed, position, previous token), so it is the same in any batch,
with any drafts and on any attempt. Most tokens follow a cycle, which drafters can guess; `acceptance` is the share of
these. It uses two sampling parameters: seed (if sampled) and min_tokens.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from services.api.drafter import Draft
from services.api.pooling import MEAN
from services.api.prompt_columns import PromptColumns
from services.worker.running.runner import Facts
from services.worker.running.work import Drafted, Logprob, NewSequence, Result, SequenceWork, TopId, Verdict, Work

MASK_64 = (1 << 64) - 1
CYCLE = 32  # tokens
BRANCH_PAGES = 1 << 20  # trees cost it nothing
EMBEDDING_SIZE = 16
FIRST = 100  # the lowest id of the cycle: above the special tokens of the usual tokenizers


class MockFailure(Exception):
    """The failure that `crash_every` asks for."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The keys of the setting mock_profile."""

    step_ms: float = 0.0
    row_us: float = 0.0
    acceptance: float = 0.7
    fail_every: int = 0  # of every N sequences one fails after its first token
    crash_every: int = 0  # at every Nth step the whole engine fails
    eos_every: int = 0  # tokens between ends of text, about; 0: none
    vocab_size: int = 49152
    max_context: int = 8192
    eos_token_id: int = 2
    pages: int = 0  # 0: by kv_cache_mb
    token_bytes: int = 64  # of a token's keys and values, where pages are handed to another worker
    seed: int = 0

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Profile:
        """Raises ValueError on unknown keys and impossible values."""
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


class MockPages:
    """Pages of zeros: the mock's text doesn't depend on them."""

    def __init__(self, profile: Profile, page_tokens: int) -> None:
        self.layout = f"mock {profile.vocab_size} {profile.seed} {page_tokens}"
        self.frame_bytes = (profile.token_bytes * page_tokens,)

    def read(self, pages: Sequence[int]) -> list[list[bytes]]:
        return [[bytes(size) for size in self.frame_bytes] for _ in pages]

    def write(self, page: int, frames: Sequence[bytes]) -> None:
        assert tuple(map(len, frames)) == self.frame_bytes


class MockRunner:
    # It makes up its texts.
    grammars = None
    # The time of a step passes whatever the thread does since the launch.
    elsewhere = True

    def grammar_drafts(self, drafts: Mapping[int, Draft], longest: Mapping[int, int]) -> dict[int, Draft]:
        return {}

    def __init__(
        self,
        profile: Profile,
        *,
        page_tokens: int = 32,
        pages: int = 1024,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.facts = Facts(
            profile.vocab_size,
            profile.max_context,
            (profile.eos_token_id,),
            page_tokens,
            profile.pages or pages,
            path="mock engine",
            vocabulary=f"mock-{profile.vocab_size}-{profile.seed}",
            branch_pages=BRANCH_PAGES,
            hidden_size=EMBEDDING_SIZE,
        )
        self.profile = profile
        self.steps = 0
        self._known: dict[int, NewSequence] = {}
        # Steps that aren't finished, and when they were launched; then the last one that is, and when it was over.
        self._launched: deque[tuple[Work, float]] = deque()
        self._work, self._result, self._ended = Work(), Result([]), 0.0
        self._sleep = sleep
        self._now = now
        # In units of 2**-16.
        self._stays = int(profile.acceptance * 65536)

    @property
    def drafters(self) -> tuple[str, ...]:
        return ()

    @property
    def feeds(self) -> bool:
        return not self.drafters

    def counts(self) -> dict[str, int]:
        return {}

    def page_memory(self) -> MockPages:
        return MockPages(self.profile, self.facts.page_tokens)

    def launch(self, work: Work) -> None:
        profile = self.profile
        self._launched.append((work, self._now()))
        for new in work.new:
            self._known[new.sequence_id] = new
        for sequence_id in work.ended:
            self._known.pop(sequence_id, None)
        # As a real model would: it has no embedding for another.
        drafted = [token for item in work.items for token in item.draft.tokens]
        assert all(0 <= token < profile.vocab_size for token in drafted), "draft tokens are in the vocabulary"
        self.steps += 1
        if profile.crash_every and self.steps % profile.crash_every == 0:
            raise MockFailure(f"step {self.steps} fails, as crash_every asks")

    def finish(self) -> Result:
        work, launched = self._launched.popleft()
        began = max(launched, self._ended)
        self._ended = began + self.seconds(work)
        left = self._ended - self._now()
        if left > 0:
            self._sleep(left)
        lasts = self._fed(work) + [item.tokens[-1] for item in work.items[len(work.fed) :]]
        verdicts = [
            self._verdict(item, last) if item.verify else None for item, last in zip(work.items, lasts, strict=True)
        ]
        scores = {item.sequence_id: self._score(item) for item in work.items if item.scored}
        pooled = [item.sequence_id for item in work.items if item.pooled and item.verify]
        embeddings = {sequence_id: self._embedding(self._known[sequence_id]) for sequence_id in pooled}
        self._work, self._result = work, Result(verdicts, self._now() - began, scores, embeddings)
        return self._result

    def draft(self) -> Drafted:
        return Drafted()

    def seconds(self, work: Work) -> float:
        """The time a step takes."""
        profile = self.profile
        if not profile.row_us:
            return profile.step_ms / 1e3
        return profile.step_ms / 1e3 + profile.row_us / 1e6 * sum(item.rows for item in work.items)

    def _fed(self, work: Work) -> list[int]:
        """Tokens of the step before, of those that get them; any of one that failed there."""
        given = [self._result.verdicts[place] for place in work.fed]
        return [verdict.tokens[-1] if verdict is not None and verdict.tokens else FIRST for verdict in given]

    def _verdict(self, item: SequenceWork, last: int) -> Verdict:
        if item.pooled:
            return Verdict([], 0)
        known, draft = self._known[item.sequence_id], item.draft
        fail_every, position = self.profile.fail_every, item.position
        if fail_every and item.sequence_id % fail_every == 0 and position > known.prompt_tokens:
            return Verdict([], 0, failure="the engine fails this sequence, as fail_every asks")
        key, accept = self._key(known), known.verification.accept_policy
        earliest_end = known.prompt_tokens + known.sampling.min_tokens
        tokens: list[int] = []
        parents = draft.parents or range(-1, len(draft.tokens) - 1)
        at = -1
        for place, drafted in enumerate(draft.tokens):
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
        if known.sampling.logprobs >= 0:
            logprobs = [_logprob(token, known.sampling.logprobs) for token in tokens]
        return Verdict(tokens, len(tokens) - 1, logprobs)

    def _score(self, item: SequenceWork) -> PromptColumns:
        """Made up: each token the most probable one."""
        count = self._known[item.sequence_id].sampling.prompt_logprobs
        told = [_logprob(token, count) for token in item.scored]
        top = [each for scored in told for each in scored.top]
        return PromptColumns(
            begin=item.start + item.logits_from + 1,
            count=len(top) // len(told),
            logprobs=array("f", [scored.logprob for scored in told]).tobytes(),
            ranks=array("i", [1] * len(told)).tobytes(),
            top_ids=array("i", [each.id for each in top]).tobytes(),
            top_logprobs=array("f", [each.logprob for each in top]).tobytes(),
        )

    def _embedding(self, known: NewSequence) -> bytes:
        """Made up of the prompt and how it is pooled."""
        seed = hash((known.pooling == MEAN, *known.text))
        return array("f", [1.0 + (seed >> 3 * at) % 8 for at in range(EMBEDDING_SIZE)]).tobytes()

    def _key(self, known: NewSequence) -> int:
        sampling = known.sampling
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


def _logprob(token: int, count: int) -> Logprob:
    """Made up, like the text: half for the token, half of the rest for each next one."""
    ids = [token, *(FIRST + (token - FIRST + i) % CYCLE for i in range(1, count))][:count]
    return Logprob(-0.69, [TopId(id, -0.69 * (i + 1)) for i, id in enumerate(ids)])
