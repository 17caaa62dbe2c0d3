"""The metrics of the streamer, with the names and buckets that dashboards for other servers use.

A `RequestTimes` measures one request, with one observation per message of tokens. Knows no HTTP and no mesh.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.api.methods import METHODS, NAIVE
from services.streamer.choice.generation import Choice, Ending
from services.streamer.extras.audit import RESULTS, Audit
from services.streamer.extras.span_export import DROPPED, SENT

TIME_TO_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN_LATENCY = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
TOKENS = tuple(float(mantissa * 10**power) for power in range(6) for mantissa in (1, 2, 5))


class StreamerMetrics:
    """The streamer's collectors, labelled with the model's name."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def histogram(name: str, help: str, buckets: Sequence[float]) -> Histogram:
            whole = Histogram(f"specmesh:{name}", help, ["model_name"], registry=registry, buckets=buckets)
            return whole.labels(model_name)

        self.first_token = histogram(
            "time_to_first_token_seconds",
            "Time from a request's arrival to its first token, in seconds",
            TIME_TO_FIRST_TOKEN,
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds",
            "Time between consecutive token messages of one choice, in seconds; a message has one step's tokens",
            INTER_TOKEN_LATENCY,
        )
        self.latency = histogram(
            "e2e_request_latency_seconds", "Time from a request's arrival to its end, in seconds", REQUEST_LATENCY
        )
        self.encode = histogram(
            "request_encode_time_seconds",
            "Time from a request's arrival until its prompt is tokenized, in seconds",
            TIME_TO_FIRST_TOKEN,
        )
        self.prompt_tokens = histogram("request_prompt_tokens", "Prompt length, in tokens", TOKENS)
        self.generation_tokens = histogram("request_generation_tokens", "Answer length, in tokens", TOKENS)
        self._ended = Counter(
            "specmesh:request_success",
            "Choices that ended, by reason: stop, length, abort (the client disconnected) or error",
            ["model_name", "finished_reason"],
            registry=registry,
        )
        self._retries = Counter(
            "specmesh:request_retries",
            "Retries of choices whose worker was lost",
            ["model_name"],
            registry=registry,
        ).labels(model_name)
        self._refused_retries = Counter(
            "specmesh:request_retries_refused",
            "Choices whose worker was lost before the first token, not retried because the retry limit was reached",
            ["model_name"],
            registry=registry,
        ).labels(model_name)
        self._responses = Counter(
            "specmesh:http_responses", "HTTP responses, by route and status code", ["route", "code"], registry=registry
        )
        by_key = {
            name: Counter(f"specmesh:key_{name}", f"{what}, by the key's name (unnamed: all without one)", ["key"],
                          registry=registry)
            for name, what in (
                ("requests", "Requests that ran the model, counted at their end"),
                ("prompt_tokens", "Tokens of prompts"),
                ("generation_tokens", "Tokens of answers"),
            )
        }  # fmt: skip
        self._by_key = tuple(by_key.values())
        self._key_refused = Counter(
            "specmesh:key_requests_refused",
            "Requests refused because a key's limit was reached, by the key's name and the limit: requests or tokens",
            ["key", "limit"],
            registry=registry,
        )
        self.running = Gauge(
            "specmesh:door_requests_running", "Choices admitted and not yet ended", ["model_name"], registry=registry
        ).labels(model_name)
        self.connections = Gauge("specmesh:http_connections", "Open HTTP connections", registry=registry)
        self.body_bytes = Gauge(
            "specmesh:http_body_bytes", "Memory reserved for the bodies of requests in progress, in bytes",
            registry=registry,
        )  # fmt: skip
        spans = Counter(
            "specmesh:trace_spans",
            "Spans of traces, by result: sent, or dropped because the collector didn't take them",
            ["result"],
            registry=registry,
        )
        self._spans = {result: spans.labels(result) for result in (SENT, DROPPED)}
        self._model_name = model_name
        self._registry = registry
        # Messages of tokens so far: while it grows, requests are served (probe.py).
        self.arrivals = 0

    def watch_audit(self, audit: Audit) -> None:
        """Serve its counts from now on."""
        self._registry.register(AuditCounts(self._model_name, audit))

    def used(self, key: str, prompt_tokens: int, generation_tokens: int) -> None:
        """`key`: its name."""
        for counter, count in zip(self._by_key, (1, prompt_tokens, generation_tokens), strict=True):
            counter.labels(key).inc(count)

    def over_limit(self, key: str, limit: str) -> None:
        self._key_refused.labels(key, limit).inc()

    def ended(self, reason: str, count: int = 1) -> None:
        self._ended.labels(self._model_name, reason).inc(count)

    def retried(self, attempts: int) -> None:
        if attempts:
            self._retries.inc(attempts)

    def refused_retry(self) -> None:
        self._refused_retries.inc()

    def spans(self, result: str, count: int) -> None:
        self._spans[result].inc(count)

    def responded(self, route: str, status: int) -> None:
        self._responses.labels(route, str(status)).inc()


class AuditCounts(Collector):
    """What became of the audit's replays. Counts that are still 0 are served, too: the first difference must show as
    an increase."""

    def __init__(self, model_name: str, audit: Audit) -> None:
        self._model_name = model_name
        self._audit = audit

    def collect(self) -> Iterable[Metric]:
        audit, labels = self._audit, ["model_name", "proposer"]
        replays = CounterMetricFamily(
            "specmesh:audit_replays",
            "Requests run again without drafts to compare the answers (audit), by result: same, different, given_up"
            " (failed or interrupted too often) or dropped (the queue was full, or the streamer stopped)",
            labels=[*labels, "result"],
        )
        off = GaugeMetricFamily(
            "specmesh:proposer_switched_off", "1 if the audit has disabled this drafting method, else 0", labels=labels
        )
        for method in METHODS:
            if method == NAIVE:
                continue
            for result in RESULTS:
                replays.add_metric([self._model_name, method, result], audit.results.get((method, result), 0))
            off.add_metric([self._model_name, method], float(method in audit.switched_off))
        yield from (replays, off)


class RequestTimes:
    """Measures one request."""

    __slots__ = ("_last", "_metrics", "first_token_s", "started")

    def __init__(self, metrics: StreamerMetrics) -> None:
        self._metrics = metrics
        self.started = time.perf_counter()
        self.first_token_s: float | None = None
        self._last: dict[int, float] = {}

    def encoded(self) -> None:
        self._metrics.encode.observe(time.perf_counter() - self.started)

    def arrived(self, index: int) -> None:
        """Tokens of the choice `index` have come."""
        self._metrics.arrivals += 1
        now = time.perf_counter()
        last = self._last.get(index)
        if last is None:
            self._metrics.first_token.observe(now - self.started)
            if self.first_token_s is None:
                self.first_token_s = now - self.started
        else:
            self._metrics.inter_token.observe(now - last)
        self._last[index] = now

    def ended(self, choices: Sequence[Choice], endings: Sequence[Ending]) -> None:
        metrics = self._metrics
        metrics.latency.observe(time.perf_counter() - self.started)
        for choice, ending in zip(choices, endings, strict=True):
            metrics.ended(ending.reason)
            metrics.retried(choice.attempt)
            metrics.prompt_tokens.observe(len(choice.prompt))
            metrics.generation_tokens.observe(ending.completion_tokens)

    def failed(self, reason: str, count: int) -> None:
        self._metrics.ended(reason, count)
