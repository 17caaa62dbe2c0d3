"""Keys in a folder, and a door that opens only to those on the list (real CURVE sockets on loopback tcp)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from mesh.errors import Insecure
from mesh.security import (
    DOMAIN,
    Authenticator,
    FolderSecurity,
    load_security,
    make_keys,
    secure_client,
    secure_server,
)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    make_keys(folder, ["target", "streamer"])
    return folder


def test_secrets_are_readable_by_their_owner_alone_and_existing_keys_stay(keys: Path) -> None:
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in keys.glob("*.secret")} == {
        "mesh.secret": "0o600",
        "target.secret": "0o600",
        "streamer.secret": "0o600",
    }
    before = (keys / "target.secret").read_bytes()
    assert make_keys(keys, ["target", "proposer"]) == ["proposer"]
    assert (keys / "target.secret").read_bytes() == before


def test_a_members_keys_hold_the_meshs_key_and_everyones_on_the_list(keys: Path) -> None:
    target, streamer = load_security(keys, "target"), load_security(keys, "streamer")
    assert target.client("tcp://10.0.0.1:7000").server_key == streamer.server().public_key
    assert target.server().allowed == {
        target.client("").public_key,
        streamer.client("").public_key,
    }


def test_a_secret_others_can_read_is_refused_with_the_fix(keys: Path) -> None:
    os.chmod(keys / "target.secret", 0o640)
    with pytest.raises(Insecure, match="chmod 600"):
        load_security(keys, "target")


def test_missing_and_broken_keys_are_named(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(Insecure, match="specmesh keys"):
        load_security(tmp_path / "nowhere", "target")
    with pytest.raises(Insecure, match=r"stranger\.secret"):
        load_security(keys, "stranger")
    (keys / "streamer.public").write_text("short")
    with pytest.raises(Insecure, match=r"streamer\.public"):
        load_security(keys, "target")


def test_keys_that_are_not_a_pair_are_refused(keys: Path) -> None:
    (keys / "target.public").write_bytes((keys / "streamer.public").read_bytes())
    with pytest.raises(Insecure, match="not a pair"):
        load_security(keys, "target")


@pytest.mark.parametrize("name", ["../evil", "", "A", "a/b", "a" * 65])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no key name"):
        make_keys(tmp_path, [name])


# Over the wire ----------------------------------------------------------------------------------------------


class Gate:
    """A bound socket with keys, and diallers that try it."""

    def __init__(self, security: FolderSecurity) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        server = security.server()
        self.authenticator = Authenticator(self.context)
        self.authenticator.allow(server.domain, server.allowed)
        self.authenticator.start()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = 0
        secure_server(self.socket, server)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")

    def dialled_by(self, security: FolderSecurity | None) -> list[str]:
        """The handshake's events at the dialler, up to the one that decides."""
        socket = self.context.socket(zmq.DEALER)
        socket.linger = 0
        if security is not None:
            secure_client(socket, security.client(""))
        decisive = (
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_DISCONNECTED
        )
        monitor = socket.get_monitor_socket(decisive)
        socket.connect(f"tcp://127.0.0.1:{self.port}")
        socket.send(b"hello")
        try:
            assert monitor.poll(5000)
            return [recv_monitor_message(monitor)["event"].name]
        finally:
            socket.disable_monitor()
            socket.close()

    def received(self, milliseconds: int) -> bytes | None:
        return self.socket.recv_multipart()[1] if self.socket.poll(milliseconds) else None

    def close(self) -> None:
        self.socket.close()
        self.authenticator.stop()
        self.context.term()


@pytest.fixture
def gate(keys: Path) -> Iterator[Gate]:
    gate = Gate(load_security(keys, "target"))
    yield gate
    gate.close()


def test_a_member_on_the_list_is_heard(gate: Gate, keys: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    secure_client(socket, load_security(keys, "streamer").client(""))
    socket.connect(f"tcp://127.0.0.1:{gate.port}")
    socket.send(b"hello")
    assert gate.received(5000) == b"hello"
    socket.close()
    context.term()


def test_a_member_not_on_the_list_is_turned_away(gate: Gate, keys: Path) -> None:
    make_keys(keys, ["latecomer"])
    assert gate.dialled_by(load_security(keys, "latecomer")) == ["HANDSHAKE_FAILED_AUTH"]
    assert gate.received(0) is None
    assert gate.authenticator.denied >= 1


def test_another_meshs_member_and_a_stranger_without_keys_are_turned_away(gate: Gate, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", ["streamer"])
    assert gate.dialled_by(load_security(tmp_path / "other", "streamer")) != ["HANDSHAKE_SUCCEEDED"]
    assert gate.dialled_by(None) != ["HANDSHAKE_SUCCEEDED"]
    assert gate.received(0) is None


def test_without_an_authenticator_the_door_stays_shut(gate: Gate, keys: Path) -> None:
    gate.authenticator.stop()
    assert gate.dialled_by(load_security(keys, "streamer")) != ["HANDSHAKE_SUCCEEDED"]
    assert gate.received(0) is None
    gate.authenticator.start()
    assert gate.dialled_by(load_security(keys, "streamer")) == ["HANDSHAKE_SUCCEEDED"]


def test_a_context_has_one_authenticator(gate: Gate) -> None:
    with pytest.raises(Insecure):
        Authenticator(gate.context).start()


@pytest.mark.parametrize(
    "request_",
    [
        [],
        [b"1.0", b"1"],
        [b"1.0", b"1", DOMAIN.encode(), b"10.0.0.9", b"", b"NULL"],
        [b"1.0", b"1", DOMAIN.encode(), b"10.0.0.9", b"", b"PLAIN", b"user", b"word"],
        [b"1.0", b"1", DOMAIN.encode(), b"10.0.0.9", b"", b"CURVE", b"\0" * 32],
        [b"1.0", b"1", b"elsewhere", b"10.0.0.9", b"", b"CURVE", b"\0" * 32],
    ],
)
def test_any_other_request_is_denied(request_: list[bytes]) -> None:
    authenticator = Authenticator(zmq.Context.instance())
    assert authenticator.answer(request_)[2] == b"400"
    assert authenticator.denied == 1
