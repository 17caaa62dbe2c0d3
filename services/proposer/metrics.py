"""Metrics of the proposer process: drafts, tokens, time, and the text it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.api.messages import EngineCounts
from services.proposer.index import IndexStats
from services.proposer.store.library import Stats

_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class _Texts(Sized, Protocol):
    tokens: int


class _Index(Protocol):
    def stats(self) -> IndexStats: ...


class ProposerMetrics:
    def __init__(self, registry: CollectorRegistry, texts: _Texts, methods: Iterable[str], index: _Index) -> None:
        registry.register(IndexMetrics(index))
        self.engines = EngineMetrics()
        registry.register(self.engines)
        self._seconds = Histogram(
            "specmesh:proposer_batch_seconds",
            "Time to answer one batch of requests for drafts, in seconds",
            buckets=_BUCKETS,
            registry=registry,
        )
        drafts = Counter(
            "specmesh:proposer_drafts", "Non-empty drafts made, by drafting method", ["proposer"], registry=registry
        )
        tokens = Counter(
            "specmesh:proposer_draft_tokens", "Draft tokens made, by drafting method", ["proposer"], registry=registry
        )
        self._drafts = {name: (drafts.labels(name), tokens.labels(name)) for name in methods}
        self._unknown = Counter(
            "specmesh:proposer_unknown_sequences",
            "Requests for drafts of a sequence whose text the proposer does not have; the worker sends the text again",
            registry=registry,
        )
        self._failures = Counter(
            "specmesh:proposer_failures",
            "Batches in which a drafting method gave no drafts, by reason: unknown_method or drafter_error",
            ["reason"],
            registry=registry,
        )
        self._refused = Counter(
            "specmesh:corpora_refused",
            "Parts of corpus uploads refused, by reason: invalid, or overloaded (caller's quota or store is full)",
            ["reason"],
            registry=registry,
        )
        Gauge(
            "specmesh:proposer_sequences", "Sequences whose text the proposer holds in memory", registry=registry
        ).set_function(lambda: len(texts))
        Gauge(
            "specmesh:proposer_text_tokens",
            "Tokens of sequence text that the proposer holds in memory",
            registry=registry,
        ).set_function(lambda: texts.tokens)

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
    ("store_bytes", "bytes", "Disk space used by learned text and corpora in the shared folder, in bytes"),
    ("store_tokens", "tokens", "Tokens of learned text in segment files"),
    ("store_segments", "segments", "Segment files of learned text"),
    ("store_namespaces", "namespaces", "Namespaces with learned text or corpora"),
    ("store_corpora", "corpora", "Corpora stored"),
    ("store_learning_tokens", "learning_tokens", "Tokens learned that are not in a segment file yet"),
    ("store_unwritable", "unwritable", "1 while writes to the store fail, 0 otherwise"),
)
_COUNTERS = (
    ("store_evicted_tokens", "evicted_tokens", "Learned tokens evicted because the store, or a namespace, was full"),
    ("store_dropped_tokens", "dropped_tokens", "Tokens not learned because they came faster than they could be stored"),
    ("store_damaged_files", "damaged", "Files and pieces of text ignored because they were damaged"),
    ("store_failures", "failures", "Failed writes to the store; they are retried after 1 to 30 seconds"),
)


class IndexMetrics:
    """Read at each scrape, so that all values are from the same time."""

    def __init__(self, index: _Index) -> None:
        self._index = index

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        stats = self._index.stats()
        yield GaugeMetricFamily(
            "specmesh:proposer_bytes", "Memory used by the suffix index, in bytes", stats.memory_bytes
        )
        yield GaugeMetricFamily(
            "specmesh:proposer_texts_to_learn", "Finished texts waiting to be indexed", stats.waiting_texts
        )
        for name, field, says in _GAUGES:
            yield GaugeMetricFamily(f"specmesh:{name}", says, _total(stats.libraries, field))
        for name, field, says in _COUNTERS:
            yield CounterMetricFamily(f"specmesh:{name}", says, _total(stats.libraries, field))


def _total(libraries: Iterable[Stats], field: str) -> float:
    return float(sum(getattr(each, field) for each in libraries))


# Name, field of EngineCounts, and help.
_OF_ENGINES = (
    ("steps", "steps", "Steps of another server's engine (vLLM), as it said last"),
    ("draft_tokens", "drafted", "Draft tokens that the engine was given to verify"),
    ("accepted_tokens", "accepted", "Draft tokens that the engine accepted"),
    ("answers", "answered", "Answers of the proposer that came in time"),
    ("missed_answers", "missed", "Answers that came late or never, so that the engine went on without"),
    ("gave_up", "gave_up", "Times that the engine stopped waiting for the proposer (circuit breaker opened)"),
    ("seconds", "seconds", "Time that drafting took in the engine's thread, in seconds"),
    ("waited_seconds", "waited_seconds", "Time of these that the engine waited for answers, in seconds"),
)


class EngineMetrics:
    """Of engines that aren't the mesh's, by name, as each of them said last."""

    def __init__(self) -> None:
        self._told: dict[str, EngineCounts] = {}

    def tell(self, engine: str, counts: EngineCounts) -> None:
        self._told[engine] = counts

    def forget(self, engine: str) -> None:
        self._told.pop(engine, None)

    def collect(self) -> Iterator[Metric]:
        # A scrape has a thread of its own.
        told = list(self._told.items())
        for name, field, says in _OF_ENGINES:
            family = CounterMetricFamily(f"specmesh:guest_{name}", says, labels=["engine"])
            for engine, counts in told:
                family.add_metric([engine], getattr(counts, field))
            yield family
