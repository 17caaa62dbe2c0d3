"""The connection speaks the mesh's protocol with a real node and a proposer's actor behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from proposer_here import NAME, NAMESPACE, VOCABULARY, Clock, Here

from mesh.envelope import VERSION as MESH_VERSION
from mesh.node import Node
from mesh.security import load_security, make_keys
from mesh.transport.zmq import ZmqTransport
from services.runtime.process import mesh_codec
from specmesh.vllm import wire
from specmesh.vllm.lengths import Acceptance
from specmesh.vllm.questions import Ask, Questions
from specmesh.vllm.rows import Text
from specmesh.vllm.wire import Answer, Connection, load_keys

LONG_MS = 20_000
cells = Acceptance().cells
TOKENS = [1, 2, 3, 4, 5, 9, 1, 2]
Serve = Callable[..., Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    nodes: list[Node] = []

    async def served(address: str, keys: Path | None = None) -> str:
        for node in nodes:
            await node.stop(0.0)
        security = None if keys is None else load_security(keys, "proposer")
        nodes[:] = [node := Node(ZmqTransport(security=security), mesh_codec(), name="proposer-1")]
        await node.start(address)
        await node.spawn(Here(Clock(), method="ngram").actor, "proposer")
        return node.endpoint

    yield served
    for node in nodes:
        await node.stop(0.0)


def text() -> Text:
    return Text(3, bytearray(b"".join(token.to_bytes(4, "little") for token in TOKENS)), len(TOKENS))


async def asked(connection: Connection, questions: Questions, *asks: Ask) -> Answer:
    number = connection.ask(questions.body(1, asks), 1000)
    while True:
        assert await asyncio.to_thread(connection.wait, LONG_MS)
        answer = connection.receive()
        if answer is not None and answer.question == number:
            return answer


def test_its_version_is_the_meshs() -> None:
    assert wire.VERSION == MESH_VERSION


async def test_a_question_is_answered_and_the_same_text_need_not_be_sent_again(serve: Serve, tmp_path: Path) -> None:
    address = await serve(f"ipc://{tmp_path}/p.sock")
    connection, questions = Connection(address, NAME, 1), Questions(NAME, 1, NAMESPACE, VOCABULARY)
    answer = await asked(connection, questions, Ask(text(), 4, []))
    assert answer.fields is not None
    [(text_id, length, tokens, found)] = questions.answered(answer.fields, answer.life, cells)
    assert (text_id, length, tokens) == (3, 8, [3, 4, 5, 9])
    *_, sources, _, _, _, chances = answer.fields[1][:8]
    assert sources == ["ngram"] and found == cells(sources, [4], chances)
    answer = await asked(connection, questions, Ask(text(), 4, [3, 4]))
    assert answer.fields is not None
    [(_, length, tokens, _)] = questions.answered(answer.fields, answer.life, cells)
    assert (length, tokens[:2]) == (10, [5, 9])
    connection.close()


async def test_a_proposer_that_restarts_is_found_by_the_same_connection(serve: Serve, tmp_path: Path) -> None:
    address = await serve(f"ipc://{tmp_path}/p.sock")
    connection, questions = Connection(address, NAME, 1), Questions(NAME, 1, NAMESPACE, VOCABULARY)
    first = await asked(connection, questions, Ask(text(), 4, []))
    assert first.fields is not None
    questions.answered(first.fields, first.life, cells)
    await serve(address)
    second = await asked(connection, questions, Ask(text(), 4, []))
    assert second.life != first.life and second.fields is not None
    assert questions.answered(second.fields, second.life, cells) == [] and second.fields[2] == [3]
    third = await asked(connection, questions, Ask(text(), 4, []))
    assert third.fields is not None and len(questions.answered(third.fields, third.life, cells)) == 1
    connection.close()


async def test_a_refusal_comes_with_its_reason(serve: Serve, tmp_path: Path) -> None:
    address = await serve(f"ipc://{tmp_path}/p.sock")
    connection = Connection(address, NAME, 1)
    twice = await asked(connection, Questions(NAME, 1, NAMESPACE, VOCABULARY), Ask(text(), 4, []), Ask(text(), 4, []))
    assert twice.fields is None and twice.reason == "invalid"
    connection.close()


async def test_with_keys_it_goes_through_a_network(serve: Serve, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, ["proposer", "vllm"])
    address = await serve("tcp://127.0.0.1:0", keys)
    connection = Connection(address, NAME, 1, load_keys(str(keys), "vllm"))
    answer = await asked(connection, Questions(NAME, 1, NAMESPACE, VOCABULARY), Ask(text(), 4, []))
    assert answer.fields is not None
    connection.close()


def test_an_address_that_leaves_the_machine_needs_keys() -> None:
    with pytest.raises(ValueError, match="SPECMESH_KEYS_DIR"):
        Connection("tcp://127.0.0.1:1", NAME, 1)


def test_keys_that_others_can_read_or_that_are_missing_are_refused(tmp_path: Path) -> None:
    make_keys(tmp_path, ["vllm"])
    (tmp_path / "vllm.secret").chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        load_keys(str(tmp_path), "vllm")
    with pytest.raises(ValueError, match="specmesh keys make other"):
        load_keys(str(tmp_path), "other")


@pytest.mark.parametrize(
    "fields",
    [
        [], [1], [1, []], [1, [[3], [8], [2], ["s"], [0], [], b"abc", b""], []],
        [1, [[3], [8], [2], ["s"], [0], [], b"\0" * 8, b"\0" * 8], []],
        [1, [[3], [8], [-1], ["s"], [0], [], b"", b""], []],
        [1, [[3], [8, 9], [0], ["s"], [0], [], b"", b""], []],
        [1, [[3], [8], [1], ["s"], [0], [[-1]], b"\0" * 4, b"\0" * 8], []],
        [1, [[3], [8], [1], ["s"], [0], [], b"\xff" * 4, b"\0" * 8], []],
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_seen(fields: list[object]) -> None:
    questions = Questions(NAME, 1, NAMESPACE, VOCABULARY)
    questions.body(1, [Ask(text(), 4, [])])
    with pytest.raises(ValueError):
        questions.answered(fields, 1, cells)
    again = msgspec.msgpack.decode(questions.body(2, [Ask(text(), 4, [])]))
    assert again[3][0][3] is True, "it was taken for confirmed"
