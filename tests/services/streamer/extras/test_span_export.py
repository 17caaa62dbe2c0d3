"""The queue of spans, with a clock that the test moves and a collector that answers as it is told."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from mesh_doubles.clock import FakeClock

from services.streamer.extras import span_export
from services.streamer.extras.span_export import BATCH, LONGEST_PAUSE, MOST, Collector, SpanExporter, resource


class FakeCollector:
    """Answers with `statuses`, and then with 200."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.began = clock.now()
        self.statuses: list[int] = []
        self.got: list[tuple[float, list[int]]] = []  # when, and the names of the spans
        self.bodies: list[bytes] = []

    async def post(self, body: bytes) -> int:
        (of_resource,) = json.loads(body)["resourceSpans"]
        (of_scope,) = of_resource["scopeSpans"]
        self.got.append((self.clock.now() - self.began, [span["name"] for span in of_scope["spans"]]))
        self.bodies.append(body)
        return self.statuses.pop(0) if self.statuses else 200


class Case:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.collector = FakeCollector(self.clock)
        self.counts: Counter[str] = Counter()
        self.exporter = SpanExporter(
            self.collector.post, resource("chat", "streamer-1"), self.clock,
            lambda result, count: self.counts.update({result: count}),
        )  # fmt: skip
        self.running = asyncio.create_task(self.exporter.run())

    def add(self, *names: int) -> None:
        self.exporter.add([b'{"name":%d}' % name for name in names])


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    case = Case()
    yield case
    case.running.cancel()


async def test_spans_of_a_second_leave_together_with_the_name_of_the_service(case: Case) -> None:
    case.add(1, 2)
    case.add(3)
    await case.clock.advance(5.0)
    assert case.collector.got == [(1.0, [1, 2, 3])]
    assert case.counts == {"sent": 3}
    described = json.loads(case.collector.bodies[0])["resourceSpans"][0]["resource"]["attributes"]
    told = {each["key"]: each["value"]["stringValue"] for each in described}
    assert told == {"service.name": "chat", "service.instance.id": "streamer-1"}


async def test_many_leave_at_once_in_batches(case: Case) -> None:
    case.add(*range(2 * BATCH + 1))
    await case.clock.advance(1.0)
    assert [(at, len(names)) for at, names in case.collector.got] == [(0.0, BATCH), (0.0, BATCH), (1.0, 1)]


@pytest.mark.parametrize("status", [0, 429, 503])
async def test_what_the_collector_does_not_take_is_sent_again_less_and_less_often(case: Case, status: int) -> None:
    case.collector.statuses = [status] * 7
    case.add(1)
    await case.clock.advance(3.0)
    case.add(2)
    await case.clock.advance(200.0)
    assert [at for at, _ in case.collector.got] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0 + LONGEST_PAUSE, 92.0]
    assert case.collector.got[-1][1] == [1, 2]
    assert case.counts == {"sent": 2}


async def test_what_it_refuses_is_dropped_and_the_next_is_sent(case: Case) -> None:
    case.collector.statuses = [400]
    case.add(1, 2)
    await case.clock.advance(1.0)
    case.add(3)
    await case.clock.advance(1.0)
    assert case.counts == {"dropped": 2, "sent": 1}


async def test_while_nobody_takes_them_the_queue_is_bounded_and_keeps_requests_whole(case: Case) -> None:
    case.collector.statuses = [0]
    case.add(*range(MOST - 1))
    await case.clock.settle()
    case.add(7, 8)  # there is room for one alone
    case.add(9)
    assert case.counts == {"dropped": 2}
    await case.clock.advance(2.0)
    assert case.counts == {"dropped": 2, "sent": MOST}
    assert case.collector.got[-1][1][-1] == 9


@pytest.mark.parametrize(("statuses", "counts"), [([], {"sent": 2, "dropped": 0}), ([503], {"dropped": 2})])
async def test_a_stop_sends_what_is_left_once(case: Case, statuses: list[int], counts: dict[str, int]) -> None:
    case.add(1, 2)
    await case.clock.settle()
    case.running.cancel()
    case.collector.statuses = statuses
    await case.exporter.close()
    assert case.counts == counts


async def test_a_stop_does_not_wait_for_a_collector_that_hangs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "LAST", 0.0)
    case.exporter._post = lambda body: asyncio.Event().wait()  # type: ignore[assignment, return-value]
    case.add(1)
    await case.exporter.close()
    assert case.counts == {"dropped": 1}


async def test_a_collector_that_is_not_there_or_hangs_up_has_no_status(unused_tcp_port: int) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    for port in (unused_tcp_port, server.sockets[0].getsockname()[1]):
        collector = Collector(f"http://127.0.0.1:{port}/v1/traces")
        assert await collector.post(b"{}") == 0
        await collector.close()
    server.close()
