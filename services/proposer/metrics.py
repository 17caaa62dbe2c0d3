"""What the proposer process counts: drafts, tokens, time, and how much text it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.proposer.proposer import Proposer

if TYPE_CHECKING:
    from mesh.clock import Clock

_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class _Texts(Sized, Protocol):
    tokens: int


class ProposerMetrics:
    def __init__(
        self, registry: CollectorRegistry, clock: Clock, texts: _Texts, proposers: Mapping[str, Proposer]
    ) -> None:
        self._clock = clock
        self._seconds = Histogram(
            "specmesh:proposer_batch_seconds", "Time to answer one batch", buckets=_BUCKETS, registry=registry
        )
        drafts = Counter(
            "specmesh:proposer_drafts", "Drafts that were not empty", ["proposer"], registry=registry
        )
        tokens = Counter(
            "specmesh:proposer_draft_tokens", "Tokens in those drafts", ["proposer"], registry=registry
        )
        self._drafts = {name: (drafts.labels(name), tokens.labels(name)) for name in proposers}
        self._unknown = Counter(
            "specmesh:proposer_unknown_sequences",
            "Sequences asked about whose text was not known, so that it is sent again",
            registry=registry,
        )
        self._failures = Counter(
            "specmesh:proposer_failures", "Batches without drafts, by reason", ["reason"], registry=registry
        )
        Gauge("specmesh:proposer_sequences", "Sequences followed", registry=registry).set_function(
            lambda: len(texts)
        )
        Gauge("specmesh:proposer_text_tokens", "Tokens of text held", registry=registry).set_function(
            lambda: texts.tokens
        )
        held = Gauge("specmesh:proposer_bytes", "Memory held, about", ["proposer"], registry=registry)
        for name, proposer in proposers.items():
            held.labels(name).set_function(proposer.held_bytes)

    @contextmanager
    def timed(self) -> Iterator[None]:
        started = self._clock.now()
        try:
            yield
        finally:
            self._seconds.observe(self._clock.now() - started)

    def drafted(self, method: str, drafts: int, tokens: int) -> None:
        if drafts:
            draft_count, token_count = self._drafts[method]
            draft_count.inc(drafts)
            token_count.inc(tokens)

    def unknown(self, count: int) -> None:
        if count:
            self._unknown.inc(count)

    def failed(self, reason: str) -> None:
        self._failures.labels(reason).inc()
