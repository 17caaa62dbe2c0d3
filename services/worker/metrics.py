"""The worker's Prometheus metrics. A scrape reads the counts of scheduler and controller, so a step only updates one
histogram. docs/operate/metrics.md defines each metric.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.worker.handover.transport import HandoverCounts
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.guard import GuardedController

# Upper bounds of the classes of steps, in rows.
ROW_CLASSES = (1, 8, 32, 128, 512)
# Sizes of steps whose predicted time is shown.
PREDICTED_ROWS = (1, 8, 16, 64)
PREDICTED_CONTEXT = 1024
# Upper bounds of the classes of draft lengths.
LENGTH_CLASSES = (1, 2, 4, 8, 16, 32, 48, 64)
# Fine for the steps of small models: an interpolated quantile should be off by a tenth at most.
_SECONDS = (
    0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.0035, 0.004, 0.0045, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.0115,
    0.013, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
_SPECULATION = ["model_name", "proposer", "verify_strategy"]


class WorkerMetrics:
    """The engine calls `after_step` after each step."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name
        steps = Histogram(
            "specmesh:step_seconds",
            "Duration of a step (forward pass and verification), in seconds; rows: upper bound of its number of rows",
            ["model_name", "rows"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._info = Gauge(
            "specmesh:engine_info",
            "Always 1; path: how the model is run; strict: whether a row has the same bits in any batch",
            ["model_name", "path", "strict"],
            registry=registry,
        )
        classes = [str(rows) for rows in ROW_CLASSES] + ["+Inf"]
        self._steps = [steps.labels(model_name, rows) for rows in classes]

    def tell_path(self, path: str, strict: bool) -> None:
        self._info.labels(self._model_name, path, str(strict).lower()).set(1)

    def watch(
        self,
        scheduler: Scheduler,
        drafts: GuardedController,
        device: Callable[[], Mapping[str, int]] = dict,
        handover: HandoverCounts | None = None,
    ) -> None:
        """Serve the counts of these from now on."""
        self._registry.register(_Counts(self._model_name, scheduler, drafts, device, handover or HandoverCounts()))

    def after_step(self, rows: int, seconds: float) -> None:
        self._steps[bisect_left(ROW_CLASSES, rows)].observe(seconds)


class _Counts(Collector):
    def __init__(
        self,
        model_name: str,
        scheduler: Scheduler,
        drafts: GuardedController,
        device: Callable[[], Mapping[str, int]],
        handover: HandoverCounts,
    ) -> None:
        self._model_name = model_name
        self._handover = handover
        self._device = device
        self._scheduler = scheduler
        self._guard = drafts
        self._drafts = drafts.controller

    def collect(self) -> Iterable[Metric]:
        yield from self._of_requests()
        yield from self._of_steps()
        yield from self._of_speculation()
        yield from self._of_sources()
        yield from self._of_lengths()
        yield from self._of_the_proposer()
        yield from self._of_the_handover()

    def _of_requests(self) -> Iterable[Metric]:
        scheduler, gauge, counter = self._scheduler, self._gauge, self._counter
        pages = scheduler.pages
        yield gauge("num_requests_running", "Sequences in the batch", len(scheduler.running))
        yield gauge("num_requests_waiting", "Requests waiting to be scheduled", len(scheduler.waiting))
        yield gauge("kv_cache_usage_perc", "Share of KV pages in use, from 0 to 1", pages.in_use / pages.total)
        states = GaugeMetricFamily(
            "specmesh:kv_pages", "KV pages, by state: in_use, cached or free", labels=["model_name", "state"]
        )
        for state, count in (("in_use", pages.in_use), ("cached", pages.cached), ("free", pages.free)):
            states.add_metric([self._model_name, state], count)
        yield states
        yield gauge("prefix_cache_pages", "KV pages kept by the prefix cache and not in use", pages.cached)
        yield counter("prompt_tokens", "Prompt tokens of accepted requests", scheduler.prompt_tokens)
        yield counter("generation_tokens", "Tokens generated", scheduler.generated_tokens)
        yield counter(
            "num_preemptions",
            "Preemptions: a running sequence loses its KV pages and is computed again later",
            scheduler.preemptions,
        )
        sharing = scheduler.planner.sharing
        yield counter(
            "prefix_cache_queries", "Tokens of scheduled sequences looked up in the prefix cache", sharing.asked_tokens
        )
        yield counter(
            "prefix_cache_hits", "Tokens of scheduled sequences found in the prefix cache", sharing.found_tokens
        )
        yield counter("prefix_cache_evictions", "Pages evicted from the prefix cache", sharing.cache.evictions)
        requests = CounterMetricFamily(
            "specmesh:worker_requests", "Requests, by how they ended", labels=["model_name", "end"]
        )
        for end, count in list(scheduler.ends.items()):
            requests.add_metric([self._model_name, end], count)
        yield requests

    def _of_the_handover(self) -> Iterable[Metric]:
        """Always there: 0 where no pages are handed over."""
        counts = self._handover
        labels = ["model_name", "way"]
        pages = _by(labels, "handover_pages", "KV pages lent to or fetched from other workers, by way")
        size = _by(labels, "handover_bytes", "Bytes of KV pages lent to or fetched from other workers, by way")
        for way, number, each in (
            ("lent", counts.lent_pages, counts.lent_bytes),
            ("fetched", counts.fetched_pages, counts.fetched_bytes),
        ):
            pages.add_metric([self._model_name, way], number)
            size.add_metric([self._model_name, way], each)
        yield pages
        yield size
        said = "Fetched KV pages that NIXL read from the other worker's memory (page_transport nixl)"
        yield self._counter("handover_read_pages", said, counts.read_pages)
        yield self._counter(
            "handover_seconds",
            "Time requests waited for KV pages of another worker, including the time to compute them, in seconds",
            counts.fetch_seconds,
        )
        said = "KV pages that did not arrive from a prefill worker and were computed here"
        yield self._counter("handover_recomputed_pages", said, counts.recomputed_pages)
        said = "Requests for KV pages of another worker, by result: complete, partial, full (no room) or none"
        ends = _by(["model_name", "end"], "handovers", said)
        for end in ("complete", "partial", "full", "none"):
            ends.add_metric([self._model_name, end], counts.ends[end])
        yield ends

    def _of_steps(self) -> Iterable[Metric]:
        predicted = GaugeMetricFamily(
            "specmesh:step_seconds_predicted",
            f"Predicted duration of a step with {PREDICTED_CONTEXT} tokens of context, in seconds, by number of rows",
            labels=["model_name", "rows"],
        )
        for rows in PREDICTED_ROWS:
            seconds = self._drafts.cost_model.predict(rows, PREDICTED_CONTEXT)
            predicted.add_metric([self._model_name, str(rows)], seconds)
        yield predicted
        # Always there, so that an alert on them has something to see; 0 without a GPU.
        counts = self._device()
        ways = _by(
            ["model_name", "way"], "gpu_steps",
            "Steps on a GPU, by way: graph (a captured graph was replayed) or eager (too many rows for a graph)",
        )  # fmt: skip
        for way in ("graph", "eager"):
            ways.add_metric([self._model_name, way], counts.get(way, 0))
        yield ways
        said = "GPU kernels compiled after the worker was ready, while requests waited; 0 in normal operation"
        yield self._counter("kernels_compiled_late", said, counts.get("compiled_late", 0))
        yield self._gauge("ranks", "Ranks (processes) that the model is split over", counts.get("ranks", 1))
        said = "Time steps spent exchanging sums and logits with other ranks, including waiting, in seconds"
        yield self._counter("rank_exchange_seconds", said, counts.get("exchange_us", 0) / 1e6)

    def _of_speculation(self) -> Iterable[Metric]:
        labels = _SPECULATION
        steps = _by(labels, "spec_decode_num_steps", "Verify steps, counted for each sequence, with or without a draft")
        empty = _by(labels, "spec_decode_num_empty_steps", "Verify steps without a draft")
        drafts = _by(labels, "spec_decode_num_drafts", "Verify steps with a draft")
        drafted = _by(labels, "spec_decode_num_draft_tokens", "Draft tokens verified")
        accepted = _by(
            labels,
            "spec_decode_num_accepted_tokens",
            "Draft tokens accepted; the target model's own tokens are not counted",
        )
        per_position = _by(
            [*labels, "position"], "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position in the draft",
        )  # fmt: skip
        for (method, strategy), tally in list(self._scheduler.tallies.items()):
            where = [self._model_name, method, strategy]
            steps.add_metric(where, tally.steps)
            empty.add_metric(where, tally.empty)
            drafts.add_metric(where, tally.drafts)
            drafted.add_metric(where, tally.drafted)
            accepted.add_metric(where, tally.accepted)
            for position, count in enumerate(tally.accepted_at.counts()):
                per_position.add_metric([*where, str(position)], count)
        yield from (steps, empty, drafts, drafted, accepted, per_position)

    def _of_sources(self) -> Iterable[Metric]:
        """By source; all corpora are one. The proposer chooses the names, and their number is bounded."""
        labels = ["model_name", "source"]
        drafts = _by(
            labels, "draft_source_drafts", "Drafts verified, by source; all corpora count as one source, corpus"
        )
        drafted = _by(labels, "draft_source_tokens", "Draft tokens verified, by source")
        accepted = _by(labels, "draft_source_accepted_tokens", "Draft tokens accepted, by source")
        claimed = _by(
            labels,
            "draft_source_claimed_tokens",
            "Draft tokens expected to be accepted according to the drafter's confidence, by source (method auto only)",
        )
        expected = _by(
            labels,
            "draft_source_expected_tokens",
            "Draft tokens expected to be accepted according to measured acceptance, by source (method auto only)",
        )
        places = _by(
            [*labels, "position"],
            "draft_source_accepted_tokens_per_pos",
            "Draft tokens accepted, by source and position in the draft",
        )
        for source, counts in list(self._drafts.counts.sources.items()):
            where = [self._model_name, source]
            drafts.add_metric(where, counts.drafts)
            drafted.add_metric(where, counts.drafted)
            accepted.add_metric(where, counts.accepted)
            claimed.add_metric(where, counts.claimed)
            expected.add_metric(where, counts.expected)
            for position, count in enumerate(counts.accepted_at.counts()):
                places.add_metric([*where, str(position)], count)
        yield from (drafts, drafted, accepted, claimed, expected, places)

    def _of_lengths(self) -> Iterable[Metric]:
        counts = self._drafts.counts
        ways = _by(
            ["model_name", "way"], "drafts_came",
            "Verify steps that could have a draft, by origin of the draft: kept (the rest of an earlier draft), ahead"
            " (requested during the last step), waited (requested and waited for), head (the worker's head) or"
            " none",
        )  # fmt: skip
        for way, count in list(counts.ways.items()):
            ways.add_metric([self._model_name, way], count)
        yield ways
        chosen = HistogramMetricFamily(
            "specmesh:draft_length", "Length of verified drafts, in tokens", labels=["model_name"]
        )
        lengths = list(counts.lengths)
        buckets = [(str(bound), float(sum(lengths[: bound + 1]))) for bound in LENGTH_CLASSES]
        whole = float(sum(lengths))
        tokens = float(sum(length * count for length, count in enumerate(lengths)))
        chosen.add_metric([self._model_name], [*buckets, ("+Inf", whole)], tokens)
        yield chosen
        asking = _by(
            ["model_name", "way"], "draft_asking_seconds",
            "Engine thread's time for drafts, in seconds, by way: ahead (requests sent during a step), waited (requests"
            " waited for) or head (the worker's head)",
        )  # fmt: skip
        for kind, seconds in list(counts.asking_seconds.items()):
            asking.add_metric([self._model_name, kind], seconds)
        yield asking
        counter = self._counter
        yield counter("drafts_dropped", "Prepared drafts dropped because the text went on differently", counts.dropped)
        yield counter("drafts_late", "Drafts that came too late: the text was already longer or different", counts.late)
        said = "Time of steps with drafts, in seconds; only steps whose time without drafts can be predicted"
        yield counter("spec_decode_drafted_seconds", said, counts.drafted_seconds)
        said = "Predicted time without drafts for the tokens of steps with drafts, in seconds"
        yield counter("spec_decode_naive_seconds", said, counts.naive_seconds)
        said = "Namespaces with acceptance rates in memory"
        yield self._gauge("draft_namespaces", said, len(self._drafts.acceptance))

    def _of_the_proposer(self) -> Iterable[Metric]:
        client, counter = self._drafts.client, self._counter
        for name, count, said in OF_REQUESTS:
            yield counter(name, said, client.count(count))
        said = "Invalid drafts refused: a malformed tree, token ids outside the vocabulary, or invalid probabilities"
        yield counter("drafts_refused", said, self._drafts.counts.refused)
        said = "1 if an error in the worker's drafting code has disabled drafting until the worker restarts, else 0"
        yield self._gauge("drafting_failed", said, float(self._guard.failed))
        said = "Proposers that steps do not wait for, because they do not answer (circuit breaker open)"
        yield self._gauge("proposer_given_up", said, float(client.given_up()))

    def _gauge(self, name: str, help: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"specmesh:{name}", help, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(f"specmesh:{name}", help, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family


# Name of a metric of requests for drafts, the count that it tells, its help.
OF_REQUESTS = (
    ("draft_requests", "asked", "Requests for drafts sent to proposers, at most one per proposer and step"),
    ("draft_requests_ahead", "asked_ahead", "Requests for drafts sent during a step, for the next one"),
    ("draft_deadline_misses", "missed", "Requests for drafts that were not answered before their deadline"),
    ("draft_failures", "failed", "Requests for drafts that failed or got an invalid answer"),
)


def _by(labels: Sequence[str], name: str, help: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"specmesh:{name}", help, labels=labels)
