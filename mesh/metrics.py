"""Counters of the mesh. Plain integers on the hot path; Prometheus reads them when it scrapes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

ROUND_TRIP_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0
)  # fmt: skip
# Reasons and kinds come from tables; should one ever come from outside, the label set stays bounded.
MAX_LABELS = 256


class Gauges:
    """State of a node at the moment of a scrape."""

    def __init__(self) -> None:
        self.mailboxes: dict[str, int] = {}
        self.outbox_bytes = 0
        self.outstanding_bytes = 0
        self.streams_open: dict[str, int] = {"reading": 0, "writing": 0}
        self.peers: dict[str, int] = {"dialled": 0, "accepted": 0}


class BusMetrics:
    """Counters of one node. Without a registry they are only counted."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.sent_kinds: dict[str, list[int]] = {}  # kind -> [messages, bytes]
        self.received_kinds: dict[str, list[int]] = {}
        self.bundles = {"sent": 0, "received": 0}
        self.refused: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        self.peers_lost = 0
        self.handler_errors = 0
        self.round_trips: dict[str, list[float]] = {}  # kind -> counts by bucket, the rest, their sum
        self._gauges: Callable[[], Gauges] | None = None
        if registry is not None:
            registry.register(self)

    def attach(self, gauges: Callable[[], Gauges]) -> None:
        """The node whose state is read at a scrape."""
        self._gauges = gauges

    def sent(self, kind: str, size: int) -> None:
        _add(self.sent_kinds, kind, size)

    def received(self, kind: str, size: int) -> None:
        _add(self.received_kinds, kind, size)

    def refuse(self, reason: str) -> None:
        """Bytes or a request from outside were not accepted."""
        _count(self.refused, reason)

    def drop(self, reason: str) -> None:
        """A record of our own protocol was dropped: a duplicate, a stale epoch, a tell without room."""
        _count(self.dropped, reason)

    def round_trip(self, kind: str, seconds: float) -> None:
        counts = self.round_trips.get(kind)
        if counts is None:
            if len(self.round_trips) >= MAX_LABELS:
                return
            counts = self.round_trips[kind] = [0.0] * (len(ROUND_TRIP_BUCKETS) + 2)
        counts[bisect_left(ROUND_TRIP_BUCKETS, seconds)] += 1
        counts[-1] += seconds

    def describe(self) -> Iterable[Metric]:
        """Asked for at registration: the names, without a scrape."""
        return self._collect(Gauges())

    def collect(self) -> Iterable[Metric]:
        return self._collect(self._gauges() if self._gauges else Gauges())

    def _collect(self, gauges: Gauges) -> Iterable[Metric]:
        yield from self._traffic()
        yield self._round_trips()
        for name, help, label, values in (
            ("bus_refused", "Messages and requests refused, by reason", "reason", self.refused),
            (
                "bus_dropped",
                "Messages dropped as duplicate, stale, late or unsendable, by reason",
                "reason",
                self.dropped,
            ),
            ("bus_bundles", "Bundles (transport messages), by direction: sent or received", "direction", self.bundles),
        ):
            yield _counter(name, help, (label,), {(key,): value for key, value in values.items()})
        for name, help, value in (
            ("bus_peers_lost", "Connections lost while requests or streams were open on them", self.peers_lost),
            ("bus_handler_errors", "Message handlers that raised an unexpected exception", self.handler_errors),
        ):
            yield _counter(name, help, (), {(): value})
        for name, help, label, states in (
            ("bus_mailbox_depth", "Messages waiting to be handled, by actor", "actor", gauges.mailboxes),
            ("bus_streams_open", "Open streams, by end: reading or writing", "end", gauges.streams_open),
            ("bus_peers", "Open connections, by side: dialled (outbound) or accepted (inbound)", "side", gauges.peers),
        ):
            family = GaugeMetricFamily(f"specmesh:{name}", help, labels=[label])
            for key, value in states.items():
                family.add_metric([key], value)
            yield family
        yield GaugeMetricFamily("specmesh:bus_outbox_bytes", "Data queued for sending, in bytes", gauges.outbox_bytes)
        yield GaugeMetricFamily(
            "specmesh:bus_credits_outstanding_bytes",
            "Stream data sent and not yet read by the receiver, in bytes",
            gauges.outstanding_bytes,
        )

    def _traffic(self) -> Iterable[Metric]:
        messages: dict[tuple[str, ...], float] = {}
        sizes: dict[tuple[str, ...], float] = {}
        for direction, kinds in (("sent", self.sent_kinds), ("received", self.received_kinds)):
            for kind, (count, size) in kinds.items():
                messages[direction, kind] = count
                sizes[direction, kind] = size
        labels = ("direction", "kind")
        said = "Messages between processes, by direction (sent or received) and message type"
        yield _counter("bus_messages", said, labels, messages)
        said = "Bytes of messages between processes, by direction and message type; raw frames count only when sent"
        yield _counter("bus_bytes", said, labels, sizes)

    def _round_trips(self) -> Metric:
        family = HistogramMetricFamily(
            "specmesh:bus_round_trip_seconds",
            "Time from sending a request to receiving its answer, in seconds, by message type",
            labels=["kind"],
        )
        for kind, counts in self.round_trips.items():
            below, buckets = 0.0, []
            for bound, count in zip((*map(str, ROUND_TRIP_BUCKETS), "+Inf"), counts, strict=False):
                below += count
                buckets.append((bound, below))
            family.add_metric([kind], buckets, counts[-1])
        return family


def _add(table: dict[str, list[int]], kind: str, size: int) -> None:
    try:
        entry = table[kind]
    except KeyError:
        if len(table) >= MAX_LABELS:
            return
        entry = table[kind] = [0, 0]
    entry[0] += 1
    entry[1] += size


def _count(table: dict[str, int], reason: str) -> None:
    if reason in table or len(table) < MAX_LABELS:
        table[reason] = table.get(reason, 0) + 1


def _counter(name: str, help: str, labels: tuple[str, ...], values: dict[Any, float]) -> Metric:
    family = CounterMetricFamily(f"specmesh:{name}", help, labels=list(labels))
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
