"""The side door as a client sees it, well-behaved or not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from services.runtime import health_server as health_server
from services.runtime.health_server import MAX_CONNECTIONS, MAX_HEAD_BYTES, HealthServer, PortTaken

HOST = "127.0.0.1"


class House:
    """A side door with something behind it."""

    def __init__(self, vllm_metric_names: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.reasons = ["still loading"]
        self.door = HealthServer(
            self.registry,
            lambda: self.reasons,
            about={"role": "worker", "instance": "worker-1"},
            vllm_metric_names=vllm_metric_names,
        )

    async def send(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, self.door.port)
        try:
            writer.write(request)
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def get(self, path: str) -> tuple[int, bytes]:
        answer = await self.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        return int(head.split()[1]), body


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    await house.door.start(HOST, 0)
    yield house
    await house.door.stop()


async def test_ready_says_why_not_while_live_says_yes(house: House) -> None:
    assert (await house.get("/health/live"))[0] == 200
    status, body = await house.get("/health/ready")
    assert status == 503
    assert json.loads(body) == {
        "ready": False,
        "role": "worker",
        "instance": "worker-1",
        "reasons": ["still loading"],
    }
    house.reasons = []
    status, body = await house.get("/health/ready?verbose=1")
    assert status == 200 and json.loads(body)["ready"] is True


async def test_metrics_are_the_registrys(house: House) -> None:
    Counter("specmesh:tokens", "Tokens.", registry=house.registry).inc(3)
    status, body = await house.get("/metrics")
    assert status == 200
    assert b"specmesh:tokens_total 3.0" in body and b"vllm:" not in body


async def test_metrics_are_served_under_the_vllm_prefix_too_when_asked() -> None:
    house = House(vllm_metric_names=True)
    gauge = Gauge("specmesh:running", "Running.", ["model_name"], registry=house.registry)
    gauge.labels(model_name="specmesh:odd").set(1)
    Gauge("other", "Not specmesh: ours.", registry=house.registry)
    lines = house.door.metrics().decode().splitlines()
    assert 'specmesh:running{model_name="specmesh:odd"} 1.0' in lines
    assert 'vllm:running{model_name="specmesh:odd"} 1.0' in lines
    assert "# TYPE vllm:running gauge" in lines
    assert not [line for line in lines if line.startswith("vllm:") and "running" not in line]


async def test_head_gets_the_head_alone(house: House) -> None:
    answer = await house.send(b"HEAD /health/live HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", b"405"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\xff\xfe\x00\r\n\r\n", b"400"),
        (b"GET /" + b"a" * (2 * MAX_HEAD_BYTES) + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * MAX_HEAD_BYTES + b"\r\n", b"431"),
    ],
)
async def test_what_it_doesnt_serve_is_refused_in_http(house: House, request_: bytes, status: bytes) -> None:
    assert (await house.send(request_)).split()[1] == status


async def test_a_collector_that_fails_costs_one_answer(house: House) -> None:
    gauge = Gauge("specmesh:broken", "Broken.", registry=house.registry)
    gauge.set_function(lambda: 1 / 0)
    assert (await house.get("/metrics"))[0] == 500
    assert (await house.get("/health/live"))[0] == 200


async def test_garbage_harms_nobody(house: House) -> None:
    dice = random.Random(7)
    pieces = [b"GET", b" ", b"/metrics", b"\r\n", b"\r\n\r\n", b"HTTP/1.1", b"\0", b"\xff" * 9, b"POST", b"%"]

    async def throw() -> None:
        request = b"".join(dice.choice(pieces) for _ in range(dice.randrange(1, 30))) + b"\r\n\r\n"
        answer = await house.send(request)
        assert answer.startswith(b"HTTP/1.1 ") and b" 500 " not in answer

    for _ in range(20):
        await asyncio.gather(*(throw() for _ in range(20)))
    assert (await house.get("/health/live"))[0] == 200


async def test_a_client_that_dawdles_is_told_and_dropped(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_server, "HEAD_TIMEOUT", 0.05)
    assert (await house.send(b"GET /metr")).split()[1] == b"408"


async def test_connections_are_capped_and_come_free_again(house: House) -> None:
    idle = [await asyncio.open_connection(HOST, house.door.port) for _ in range(MAX_CONNECTIONS)]
    assert await house.send(b"GET /health/live HTTP/1.1\r\n\r\n") == b""
    for _, writer in idle:
        writer.close()
    for _ in range(100):
        if (await house.send(b"GET /health/live HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200"):
            return
    pytest.fail("the connections did not come free")


async def test_a_taken_port_is_said_with_the_setting_to_change(house: House) -> None:
    with pytest.raises(PortTaken, match="--metrics-port"):
        await House().door.start(HOST, house.door.port)


async def test_stop_ends_open_connections() -> None:
    house = House()
    await house.door.start(HOST, 0)
    reader, writer = await asyncio.open_connection(HOST, house.door.port)
    await house.get("/health/live")
    await house.door.stop()
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
