"""Keys in a folder, and a door that opens only to those on the list (real CURVE sockets on loopback tcp)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
import zmq.asyncio

from mesh.actor import Actor, Call
from mesh.codec import Codec
from mesh.errors import DeadlineExceeded, Insecure, PeerLost
from mesh.node import Node
from mesh.security import FolderSecurity, load_security, make_keys
from mesh.transport.zmq import ZmqTransport


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    make_keys(folder, ["worker", "streamer"])
    return folder


def test_secrets_are_readable_by_their_owner_alone_and_existing_keys_stay(keys: Path) -> None:
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in keys.glob("*.secret")} == {
        "mesh.secret": "0o600",
        "worker.secret": "0o600",
        "streamer.secret": "0o600",
    }
    before = (keys / "worker.secret").read_bytes()
    assert make_keys(keys, ["worker", "proposer"]) == ["proposer"]
    assert (keys / "worker.secret").read_bytes() == before


def test_a_members_keys_hold_the_meshs_key_and_everyones_on_the_list(keys: Path) -> None:
    target, streamer = load_security(keys, "worker"), load_security(keys, "streamer")
    assert target.client().server_key == streamer.server().public_key
    assert target.server().allowed == {
        target.client().public_key,
        streamer.client().public_key,
    }


def test_a_secret_others_can_read_is_refused_with_the_fix(keys: Path) -> None:
    os.chmod(keys / "worker.secret", 0o640)
    with pytest.raises(Insecure, match="chmod 600"):
        load_security(keys, "worker")


def test_missing_and_broken_keys_are_named(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(Insecure, match="specmesh keys"):
        load_security(tmp_path / "nowhere", "worker")
    with pytest.raises(Insecure, match=r"stranger\.secret"):
        load_security(keys, "stranger")
    (keys / "streamer.public").write_text("short")
    with pytest.raises(Insecure, match=r"streamer\.public"):
        load_security(keys, "worker")


def test_keys_that_are_not_a_pair_are_refused(keys: Path) -> None:
    (keys / "worker.public").write_bytes((keys / "streamer.public").read_bytes())
    with pytest.raises(Insecure, match="not a pair"):
        load_security(keys, "worker")


@pytest.mark.parametrize("name", ["../evil", "", "A", "a/b", "a" * 65])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no key name"):
        make_keys(tmp_path, [name])


# Over the wire ----------------------------------------------------------------------------------------------


class Question(msgspec.Struct, frozen=True):
    text: str


class Echo(Actor):
    handlers: ClassVar = {Question: "answer"}

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def answer(self, message: Question, call: Call) -> Question:
        self.heard.append(message.text)
        return message


def node(name: str, security: FolderSecurity | None) -> Node:
    return Node(ZmqTransport(security=security), Codec({"question": Question}), name=name)


class Door:
    """A node bound to tcp with a member's keys, and an actor behind it."""

    def __init__(self, security: FolderSecurity) -> None:
        self.node = node("worker-1", security)
        self.echo = Echo()

    async def asked_by(self, security: FolderSecurity | None, timeout: float) -> object:
        dialler = node("streamer-1", security)
        await dialler.start()
        try:
            return await dialler.ref(self.node.endpoint, "echo").ask(Question("who?"), timeout=timeout)
        finally:
            await dialler.stop(0.0)


@pytest.fixture
async def door(keys: Path) -> AsyncIterator[Door]:
    door = Door(load_security(keys, "worker"))
    await door.node.start("tcp://127.0.0.1:0")
    await door.node.spawn(door.echo, "echo")
    yield door
    await door.node.stop(0.0)


async def test_a_member_on_the_list_is_answered(door: Door, keys: Path) -> None:
    assert await door.asked_by(load_security(keys, "streamer"), timeout=10.0) == Question("who?")


async def test_a_member_not_on_the_list_gets_nothing(door: Door, keys: Path) -> None:
    make_keys(keys, ["latecomer"])
    with pytest.raises((PeerLost, DeadlineExceeded)):
        await door.asked_by(load_security(keys, "latecomer"), timeout=0.5)
    assert door.echo.heard == []


async def test_another_meshs_member_gets_nothing(door: Door, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", ["streamer"])
    with pytest.raises((PeerLost, DeadlineExceeded)):
        await door.asked_by(load_security(tmp_path / "other", "streamer"), timeout=0.5)
    assert door.echo.heard == []


async def test_a_stranger_with_a_bare_socket_gets_nothing(door: Door) -> None:
    context: zmq.asyncio.Context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(door.node.endpoint)
    await socket.send(b"let me in")
    assert await socket.poll(300) == 0
    socket.close()
    context.term()
    assert door.echo.heard == []


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "tcp://0.0.0.0:0", "tcp://*:0"])
async def test_without_keys_no_tcp_address_is_bound(endpoint: str) -> None:
    keyless = node("worker-1", None)
    with pytest.raises(Insecure, match="specmesh keys"):
        await keyless.start(endpoint)
    await keyless.stop(0.0)


async def test_without_keys_no_tcp_address_is_dialled(door: Door) -> None:
    with pytest.raises(Insecure):
        await door.asked_by(None, timeout=5.0)
