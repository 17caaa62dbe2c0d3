"""What the bus tells Prometheus, after real traffic."""

from __future__ import annotations

from typing import Any

from mesh_doubles.messages import Count, Echo, Witness
from prometheus_client import CollectorRegistry, generate_latest

from mesh.metrics import MAX_LABELS, BusMetrics

Mesh = Any  # the fixture of conftest.py


async def test_traffic_is_told_by_direction_and_kind(mesh: Mesh) -> None:
    registry = CollectorRegistry()
    far = await mesh.node("far", metrics=BusMetrics(registry))
    near = await mesh.node("near")
    await far.spawn(Witness(), "witness")
    ref = near.ref(far.endpoint, "witness")
    for number in range(3):
        await ref.ask(Echo(number), timeout=5.0)
    async with ref.stream(Count(10), timeout=5.0) as stream:
        assert len([item async for item in stream]) == 10
        assert registry.get_sample_value("specmesh:bus_streams_open", {"end": "writing"}) is not None

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"specmesh:{name}", labels)

    assert value("bus_messages_total", direction="received", kind="echo") == 3
    assert value("bus_messages_total", direction="sent", kind="echo") == 3
    assert value("bus_messages_total", direction="sent", kind="number") == 10
    assert (value("bus_bytes_total", direction="sent", kind="number") or 0) > 10
    assert value("bus_mailbox_depth", actor="witness") == 0
    assert value("bus_outbox_bytes") == 0
    assert value("bus_peers", side="accepted") == 1


async def test_round_trips_are_a_histogram_by_kind(mesh: Mesh) -> None:
    registry = CollectorRegistry()
    near = await mesh.node("near", metrics=BusMetrics(registry))
    far = await mesh.node("far")
    await far.spawn(Witness(), "witness")
    for number in range(5):
        await near.ref(far.endpoint, "witness").ask(Echo(number), timeout=5.0)
    assert registry.get_sample_value("specmesh:bus_round_trip_seconds_count", {"kind": "echo"}) == 5
    assert registry.get_sample_value("specmesh:bus_round_trip_seconds_bucket", {"kind": "echo", "le": "+Inf"}) == 5
    assert (registry.get_sample_value("specmesh:bus_round_trip_seconds_sum", {"kind": "echo"}) or 0) > 0


def test_buckets_add_up() -> None:
    registry = CollectorRegistry()
    metrics = BusMetrics(registry)
    for seconds in (0.00005, 0.0003, 0.02, 99.0):
        metrics.round_trip("x", seconds)
    text = generate_latest(registry).decode()
    assert 'le="0.0001"} 1.0' in text.replace('kind="x",', "").replace(',kind="x"', "")
    assert registry.get_sample_value("specmesh:bus_round_trip_seconds_bucket", {"kind": "x", "le": "0.025"}) == 3
    assert registry.get_sample_value("specmesh:bus_round_trip_seconds_count", {"kind": "x"}) == 4


def test_labels_are_bounded_whatever_comes() -> None:
    metrics = BusMetrics()
    for number in range(MAX_LABELS * 2):
        metrics.refuse(f"r{number}")
        metrics.drop(f"d{number}")
        metrics.sent(f"k{number}", 1)
        metrics.round_trip(f"k{number}", 1.0)
    assert {len(t) for t in (metrics.refused, metrics.dropped, metrics.sent_kinds, metrics.round_trips)} == {MAX_LABELS}
