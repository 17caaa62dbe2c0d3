"""TLS at the door: what clients see, and what happens when the certificate changes under running streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from certificates import Made, make_certificate, put
from fake_mesh import MODEL, FakeMesh, FakeTarget, floods, says, until
from raw_sockets import BODY, QUICK, answer, head

from services.api.settings import Settings
from services.cli.chat import server_of
from services.cli.status import ask
from services.streamer.door.connections import MAX_REFUSED, Connections
from services.streamer.door.file_watch import FileWatch
from specmesh.certificates import trusting

REQUEST = head(len(BODY)) + BODY


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make_certificate(tmp_path)


@pytest.fixture
def next_one(tmp_path: Path) -> Made:
    return make_certificate(tmp_path, "second")


async def start(mesh: FakeMesh, made: Made, **more: Any) -> Connections:
    door = await mesh.start_door(ssl_certfile=made.certfile, ssl_keyfile=made.keyfile, **more)
    return door.connections


def port_of(mesh: FakeMesh) -> int:
    assert mesh.door is not None
    return mesh.door.port


async def connect(mesh: FakeMesh, made: Made) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("localhost", port_of(mesh), ssl=strict(made))


def strict(made: Made) -> ssl.SSLContext:
    """As a client does: by a trusted issuer, and by name."""
    return ssl.create_default_context(cafile=made.certfile)


def common_name(writer: asyncio.StreamWriter) -> str:
    subject = writer.get_extra_info("peercert")["subject"]
    return next(value for ((field, value),) in subject if field == "commonName")


def gated(gate: asyncio.Event) -> Callable[..., Any]:
    async def script(target: FakeTarget, message: Any, out: Any) -> None:
        await gate.wait()
        await says("hello")(target, message, out)

    return script


async def test_an_answer_is_streamed_over_tls(mesh: FakeMesh, made: Made) -> None:
    await mesh.start_target(says("hello"))
    await start(mesh, made)
    url = f"https://localhost:{port_of(mesh)}/v1/completions"
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 5, "stream": True}
    connector = aiohttp.TCPConnector(ssl=strict(made))
    async with aiohttp.ClientSession(connector=connector) as http, http.post(url, json=body) as response:
        text = await response.text()
    assert response.status == 200
    assert text.rstrip().endswith("data: [DONE]")


async def test_openssl_agrees_and_sees_the_chain(mesh: FakeMesh, made: Made) -> None:
    await start(mesh, made)
    client = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", f"localhost:{port_of(mesh)}", "-CAfile", made.certfile,
        "-verify_return_error", "-verify_hostname", "localhost", "-quiet", "-no_ign_eof",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answered = await asyncio.wait_for(client.stdout.read(), 10)
    assert b"200 OK" in answered
    assert answered.endswith(b'{"status":"live"}')
    client.stdin.close()
    await client.wait()


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(mesh: FakeMesh, made: Made) -> None:
    """The client's last message and its first request in one packet."""
    await mesh.start_target(says("hello"))
    await start(mesh, made)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(mesh))
    comes, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = strict(made).wrap_bio(comes, goes, server_hostname="localhost")
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(goes.read())
            comes.write(await asyncio.wait_for(reader.read(65536), 5))
    client.write(REQUEST)
    writer.write(goes.read())
    plain = b""
    while b"hello" not in plain:
        comes.write(await asyncio.wait_for(reader.read(65536), 5))
        with contextlib.suppress(ssl.SSLWantReadError):
            plain += client.read(65536)
    assert plain.startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_new_certificate_is_for_new_connections_and_running_streams_go_on(
    mesh: FakeMesh, made: Made, next_one: Made
) -> None:
    gate = asyncio.Event()
    target = await mesh.start_target(gated(gate))
    await start(mesh, made)
    reader, writer = await connect(mesh, made)
    assert common_name(writer) == "first"
    writer.write(REQUEST)
    await target.began.wait()
    put(next_one, made)
    _, another = await connect(mesh, made)  # trusts what is in the file now
    assert common_name(another) == "second"
    gate.set()
    status, body = await asyncio.wait_for(answer(reader), 5)
    assert (status, body["choices"][0]["text"]) == (200, "hello")
    for each in (writer, another):
        each.close()


async def test_files_that_do_not_fit_change_nothing_until_they_do(
    mesh: FakeMesh, made: Made, next_one: Made, caplog: pytest.LogCaptureFixture
) -> None:
    await start(mesh, made)
    trusted = trusting(made.certfile)
    os.replace(next_one.certfile, made.certfile)
    for _ in range(2):
        _, writer = await asyncio.open_connection("localhost", port_of(mesh), ssl=trusted)
        writer.close()
    told = [each.getMessage() for each in caplog.records if "certificate" in each.getMessage()]
    wrong = f"ssl_keyfile: {made.keyfile} is not the key of the certificate in {made.certfile}"
    assert told == [f"the certificate in use stays: {wrong}"]
    os.replace(next_one.keyfile, made.keyfile)
    _, writer = await connect(mesh, made)
    assert common_name(writer) == "second"
    writer.close()


async def test_a_client_that_says_nothing_is_let_go(mesh: FakeMesh, made: Made) -> None:
    connections = await start(mesh, made, **QUICK)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(mesh))
    await until(lambda: len(connections.handshakes) == 1)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    await until(lambda: not connections.handshakes)
    writer.close()


async def test_silent_clients_have_no_more_places_than_connections(mesh: FakeMesh, made: Made) -> None:
    connections = await start(mesh, made, max_connections=2)
    opened = [await asyncio.open_connection("127.0.0.1", port_of(mesh)) for _ in range(2 + MAX_REFUSED)]
    await until(lambda: len(connections.handshakes) == 2 + MAX_REFUSED)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(mesh))
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert len(connections.handshakes) == 2 + MAX_REFUSED
    for _, each in [*opened, (reader, writer)]:
        each.close()
    await until(lambda: not connections.handshakes)


async def test_http_without_tls_is_not_answered(mesh: FakeMesh, made: Made) -> None:
    connections = await start(mesh, made)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(mesh))
    writer.write(REQUEST)
    with contextlib.suppress(ConnectionResetError):
        assert b"HTTP" not in await asyncio.wait_for(reader.read(), 5)
    await until(lambda: not connections.handshakes)
    assert not connections.open
    writer.close()


async def test_half_a_header_is_answered_408_and_the_connection_ends(mesh: FakeMesh, made: Made) -> None:
    # The handshake takes part of it.
    connections = await start(mesh, made, body_timeout=1.0)
    reader, writer = await connect(mesh, made)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    status, body = await asyncio.wait_for(answer(reader), 5)
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    await until(lambda: not connections.open)
    writer.close()


async def test_a_client_that_stops_reading_is_cut(mesh: FakeMesh, made: Made) -> None:
    target = await mesh.start_target(floods)
    connections = await start(mesh, made, write_timeout=QUICK["write_timeout"])
    _, writer = await connect(mesh, made)
    body = BODY.replace(b'"max_tokens":5', b'"max_tokens":200,"stream":true')
    writer.write(head(len(body)) + body)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.wait_for(target.was_cancelled.wait(), 10)
    await until(lambda: not connections.open)
    writer.close()


async def test_streamers_share_a_port_with_tls(mesh: FakeMesh, made: Made) -> None:
    await mesh.start_target(says("hello"))
    first = await mesh.start_door(streamers=2, ssl_certfile=made.certfile, ssl_keyfile=made.keyfile)
    other = FakeMesh()
    try:
        await other.start_tokenizer()
        await other.start_target(says("hello"))
        await start(other, made, streamers=2, port=first.port)
        await first.drain(1.0)
        for _ in range(4):
            reader, writer = await connect(mesh, made)
            writer.write(REQUEST)
            assert (await asyncio.wait_for(answer(reader), 5))[0] == 200
            writer.close()
    finally:
        await other.close()


async def test_commands_of_this_machine_trust_its_certificate_and_others_are_told_how(
    mesh: FakeMesh, made: Made
) -> None:
    await mesh.start_target(says("hello"))
    await start(mesh, made)
    settings = Settings.for_tests(port=port_of(mesh), ssl_certfile=made.certfile, ssl_keyfile=made.keyfile)
    found = await ask(server_of(None, settings))
    assert found["url"] == f"https://127.0.0.1:{port_of(mesh)}"
    assert found["model"] == MODEL
    stranger = await ask(server_of(found["url"], settings))
    (told,) = stranger["reasons"]
    assert "self-signed certificate" in told
    assert "SSL_CERT_FILE" in told


def test_a_file_that_is_replaced_written_or_removed_has_changed(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("one")
    link.symlink_to(file)
    watch = FileWatch(str(link), str(tmp_path / "none"))
    assert not watch.changed()
    (tmp_path / "next").write_text("two")
    (tmp_path / "newer").symlink_to(tmp_path / "next")
    (tmp_path / "newer").replace(link)  # as Kubernetes renews a secret
    assert watch.changed()
    assert not watch.changed()
    link.unlink()
    assert watch.changed()
