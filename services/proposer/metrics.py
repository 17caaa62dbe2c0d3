"""Metrics of the proposer process: drafts, tokens, time, and the text it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.proposer.suffix_index import IndexStats, Stats

_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class _Texts(Sized, Protocol):
    tokens: int


class _Index(Protocol):
    def stats(self) -> IndexStats: ...


class ProposerMetrics:
    def __init__(self, registry: CollectorRegistry, texts: _Texts, methods: Iterable[str], index: _Index) -> None:
        registry.register(IndexMetrics(index))
        self._seconds = Histogram(
            "specmesh:proposer_batch_seconds", "Seconds to answer one batch", buckets=_BUCKETS, registry=registry
        )
        drafts = Counter("specmesh:proposer_drafts", "Drafts that were not empty", ["proposer"], registry=registry)
        tokens = Counter("specmesh:proposer_draft_tokens", "Tokens in drafts", ["proposer"], registry=registry)
        self._drafts = {name: (drafts.labels(name), tokens.labels(name)) for name in methods}
        self._unknown = Counter(
            "specmesh:proposer_unknown_sequences",
            "Requests for sequences whose text was unknown and has to be sent again",
            registry=registry,
        )
        self._failures = Counter(
            "specmesh:proposer_failures", "Batches without drafts, by reason", ["reason"], registry=registry
        )
        self._refused = Counter(
            "specmesh:corpora_refused",
            "Parts of corpora refused, by reason: invalid, or overloaded where the caller's quota or the store is full",
            ["reason"],
            registry=registry,
        )
        Gauge("specmesh:proposer_sequences", "Sequences followed", registry=registry).set_function(lambda: len(texts))
        Gauge("specmesh:proposer_text_tokens", "Tokens of text in memory", registry=registry).set_function(
            lambda: texts.tokens
        )

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

    def corpus_refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def failed(self, reason: str) -> None:
        self._failures.labels(reason).inc()


# Name, field of Stats, and help.
_GAUGES = (
    ("store_bytes", "bytes", "Bytes on disk of learned text and corpora, for all processes that share the folder"),
    ("store_tokens", "tokens", "Learned tokens in segments"),
    ("store_segments", "segments", "Segments of learned text"),
    ("store_namespaces", "namespaces", "Namespaces with learned text or corpora"),
    ("store_corpora", "corpora", "Corpora"),
    ("store_learning_tokens", "learning_tokens", "Tokens learned by this process that are not in a segment yet"),
    ("store_unwritable", "unwritable", "1 while writes to the store fail, 0 otherwise"),
    ("store_unwritten_seconds", "unwritten_seconds", "Age of the oldest learned token that is not on disk, in seconds"),
)
_COUNTERS = (
    ("store_evicted_segments", "evicted_segments", "Segments evicted because the store was full"),
    ("store_evicted_namespaces", "evicted_namespaces", "Namespaces dropped because there were too many"),
    ("store_evicted_tokens", "evicted_tokens", "Tokens in evicted segments"),
    ("store_dropped_tokens", "dropped_tokens", "Tokens not learned because they came faster than they could be stored"),
    ("store_damaged_files", "damaged", "Files ignored because they were damaged"),
    ("store_failures", "failures", "Failed writes to the store; they are retried after 1 to 30 seconds"),
    ("store_merges", "merges", "Segments made by merging others"),
)


class IndexMetrics:
    """Read at each scrape, so that all values are from the same time."""

    def __init__(self, index: _Index) -> None:
        self._index = index

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        stats = self._index.stats()
        yield GaugeMetricFamily("specmesh:proposer_bytes", "Memory of the suffix index, in bytes", stats.memory_bytes)
        yield GaugeMetricFamily(
            "specmesh:proposer_texts_to_learn", "Ended texts that are not fully learned yet", stats.waiting_texts
        )
        for name, field, says in _GAUGES:
            yield GaugeMetricFamily(f"specmesh:{name}", says, _total(stats.libraries, field))
        for name, field, says in _COUNTERS:
            yield CounterMetricFamily(f"specmesh:{name}", says, _total(stats.libraries, field))


def _total(libraries: Iterable[Stats], field: str) -> float:
    return float(sum(getattr(each, field) for each in libraries))
