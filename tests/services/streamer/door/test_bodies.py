"""Bodies: what they may take in memory together, and how many objects one may be."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import orjson
import pytest
from fake_mesh import MODEL, FakeMesh, hangs_after, says, until

from services.streamer.door.bodies import check_items
from services.streamer.openai.errors import ApiError

SMALL = {"body_memory_mb": 1, "max_body_bytes": 2**20}
HALF = 600_000
BODY = orjson.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 5})


def head(*headers: str) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, mesh: FakeMesh) -> Client:
        assert mesh.door is not None
        return cls(*await asyncio.open_connection("127.0.0.1", mesh.door.port))

    async def announces(self, size: int) -> int:
        """The status of the first answer: 100 if the body may come."""
        self.writer.write(head(f"Content-Length: {size}", "Expect: 100-continue"))
        status = int((await asyncio.wait_for(self.reader.readline(), 5)).split()[1])
        self.headers = (await self.reader.readuntil(b"\r\n\r\n")).lower() if status != 100 else b""
        return status


def held(mesh: FakeMesh) -> float:
    value = mesh.registry.get_sample_value("specmesh:http_body_bytes")
    assert value is not None
    return value


async def test_a_body_beyond_the_memory_for_all_is_429_and_there_is_room_when_another_has_ended(
    mesh: FakeMesh,
) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(**SMALL)
    first, second, third = [await Client.of(mesh) for _ in range(3)]
    assert await first.announces(HALF) == 100
    assert held(mesh) == HALF
    assert await second.announces(HALF) == 429
    assert b"retry-after: 1\r\n" in second.headers
    assert held(mesh) == HALF
    first.writer.close()
    await until(lambda: held(mesh) == 0)
    assert await third.announces(HALF) == 100
    third.writer.close()


async def test_a_chunked_body_counts_by_what_has_arrived(mesh: FakeMesh) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(**SMALL)
    first, second = await Client.of(mesh), await Client.of(mesh)
    chunk = b"%x\r\n%b\r\n" % (HALF, b" " * HALF)
    first.writer.write(head("Transfer-Encoding: chunked") + chunk)
    await until(lambda: held(mesh) == HALF)
    second.writer.write(head("Transfer-Encoding: chunked") + chunk)
    assert (await asyncio.wait_for(second.reader.readline(), 5)).split()[1] == b"429"
    assert held(mesh) == HALF
    first.writer.close()
    second.writer.close()
    await until(lambda: held(mesh) == 0)


async def test_a_body_is_held_until_its_request_has_ended(mesh: FakeMesh) -> None:
    target = await mesh.start_target(hangs_after("h"))
    await mesh.start_door(**SMALL)
    client = await Client.of(mesh)
    client.writer.write(head(f"Content-Length: {len(BODY)}") + BODY)
    await target.began.wait()
    assert held(mesh) == len(BODY)
    client.writer.close()
    await until(lambda: held(mesh) == 0)


async def test_one_body_of_the_largest_size_always_fits(mesh: FakeMesh) -> None:
    await mesh.start_door(body_memory_mb=1, max_body_bytes=2**22)
    assert await (await Client.of(mesh)).announces(2**22) == 100


def items_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(items_of, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(items_of, value))
    return int(isinstance(value, str))


def any_value(dice: random.Random, depth: int) -> Any:
    kind = dice.randrange(6 if depth else 3)
    if kind == 0:
        return dice.choice([1, 2.5, None, True])
    if kind < 3:
        return "".join(dice.choice('a"\\[]{},\n/é') for _ in range(dice.randrange(6)))
    values = [any_value(dice, depth - 1) for _ in range(dice.randrange(5))]
    return values if kind < 5 else {f'{number}"\\': value for number, value in enumerate(values)}


def test_items_are_counted_as_the_parser_would_make_them() -> None:
    dice = random.Random(5)
    for _ in range(2000):
        value = any_value(dice, 4)
        body, items = orjson.dumps(value), items_of(value)
        check_items(body, items)
        if items:
            with pytest.raises(ApiError, match="more than"):
                check_items(body, items - 1)


def test_a_text_full_of_quotes_and_brackets_is_one_item() -> None:
    check_items(orjson.dumps({"prompt": '{"a": ["\\b"]},' * 50_000}), 10)
