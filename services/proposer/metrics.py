"""What the proposer process counts: drafts, tokens, time, and how much text it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.proposer.proposer import Proposer
from services.proposer.suffix_store.library import Stats

_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class _Texts(Sized, Protocol):
    tokens: int


class _Learned(Protocol):
    """services/proposer/learning.py"""

    @property
    def waiting(self) -> int: ...
    def stats(self) -> Iterable[Stats]: ...


class ProposerMetrics:
    def __init__(
        self,
        registry: CollectorRegistry,
        texts: _Texts,
        proposers: Mapping[str, Proposer],
        learning: _Learned,
    ) -> None:
        registry.register(LearnedMetrics(learning))
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

    def took(self, seconds: float) -> None:
        self._seconds.observe(seconds)

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


# Name, what of Library.stats() it is, and its help; those that only ever grow are counters.
_HELD = (
    ("store_bytes", "bytes", "Bytes on disk of what was learned, of all processes that share the folder"),
    ("store_tokens", "tokens", "Tokens learned, in segments"),
    ("store_segments", "segments", "Segments of what was learned"),
    ("store_namespaces", "namespaces", "Namespaces of which something is kept"),
    ("store_corpora", "corpora", "Corpora that drafts may come from"),
    ("store_learning_tokens", "learning_tokens", "Tokens learned by this process that are in no segment yet"),
    ("store_unwritten_seconds", "unwritten_seconds", "Age of the oldest of them that a crash would lose"),
)
_COUNTED = (
    ("store_evicted_segments", "evicted_segments", "Segments that went for want of room"),
    ("store_evicted_tokens", "evicted_tokens", "Tokens in those"),
    ("store_dropped_tokens", "dropped_tokens", "Tokens that came faster than they could be kept"),
    ("store_damaged_files", "damaged", "Files that were left out because they were damaged"),
    ("store_failures", "failures", "Attempts to write that failed and were tried again"),
    ("store_merges", "merges", "Segments made of several"),
)


class LearnedMetrics:
    """Looked up when they are asked for: a scrape sees one moment of all."""

    def __init__(self, learning: _Learned) -> None:
        self._learning = learning

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        yield from self._families(list(self._learning.stats()))
        yield GaugeMetricFamily(
            "specmesh:proposer_texts_to_learn", "Texts that ended and wait to be learned", self._learning.waiting
        )

    def _families(self, stats: list[Stats]) -> Iterator[Metric]:
        for name, of, says in _HELD:
            yield GaugeMetricFamily(f"specmesh:{name}", says, sum(getattr(each, of) for each in stats))
        for name, of, says in _COUNTED:
            yield CounterMetricFamily(f"specmesh:{name}", says, sum(getattr(each, of) for each in stats))
