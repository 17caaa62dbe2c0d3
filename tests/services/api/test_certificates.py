"""The certificate of the HTTP server: what is refused, and whom its own clients trust."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from certificates import Made, make_certificate, openssl

from services.api.certificates import server_context
from services.api.own_door import own_context, own_url
from services.api.settings import Settings, SettingsError
from specmesh.certificates import trusting


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_certificate(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_certificate(tmp_path_factory.mktemp("others"), "other")


def refused(certfile: str, keyfile: str = "") -> str:
    with pytest.raises(ValueError, match=r"^ssl_") as caught:
        server_context(certfile, keyfile)
    return str(caught.value)


def test_a_certificate_and_its_key_may_be_two_files_or_one(made: Made, tmp_path: Path) -> None:
    server_context(*made)
    both = tmp_path / "both.pem"
    both.write_text(Path(made.keyfile).read_text() + Path(made.certfile).read_text())
    server_context(str(both))
    assert trusting(str(both)).cert_store_stats()["x509"] == 1


def test_a_file_that_is_missing_or_no_file_is_named(made: Made, tmp_path: Path) -> None:
    missing = "cannot be read (No such file or directory)"
    assert refused("/no.pem", made.keyfile) == f"ssl_certfile: /no.pem {missing}"
    assert refused(made.certfile, "/no.key") == f"ssl_keyfile: /no.key {missing}"
    assert refused(str(tmp_path)) == f"ssl_certfile: {tmp_path} cannot be read (Is a directory)"


def test_files_that_hold_something_else_are_refused(made: Made, other: Made, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no PEM")
    text = str(tmp_path / "text")
    assert refused(text, made.keyfile) == f"ssl_certfile: {text} has no certificate in PEM form"
    assert refused(made.certfile, text) == f"ssl_keyfile: {text} has no private key in PEM form"
    assert refused(made.certfile) == f"ssl_keyfile: {made.certfile} has no private key in PEM form"
    wrong = f"ssl_keyfile: {other.keyfile} is not the key of the certificate in {made.certfile}"
    assert refused(made.certfile, other.keyfile) == wrong


def test_a_passphrase_is_not_asked_for(made: Made, tmp_path: Path) -> None:
    locked = str(tmp_path / "locked.key")
    openssl("pkcs8", "-topk8", "-in", made.keyfile, "-out", locked, "-passout", "pass:abcd")
    assert refused(made.certfile, locked) == f"ssl_keyfile: {locked} has a passphrase, which nobody can be asked for"


def test_a_key_without_a_certificate_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="a key without a certificate"):
        Settings.for_tests(ssl_keyfile="k.pem")


def test_a_client_of_this_machine_trusts_the_servers_certificate_and_no_other(made: Made, other: Made) -> None:
    settings = Settings.for_tests(ssl_certfile=made.certfile, ssl_keyfile=made.keyfile, host="0.0.0.0")
    assert own_url(settings) == "https://127.0.0.1:8000"
    assert _agree(server_context(*made), own_context(settings)) == "agreed"
    assert "certificate verify failed" in _agree(server_context(*other), own_context(settings))
    assert own_context(settings.replaced(uds="/s")) is None


def _agree(server: ssl.SSLContext, client: ssl.SSLContext | None) -> str:
    """Both sides of a handshake in memory."""
    assert client is not None
    ends = [ssl.MemoryBIO() for _ in range(2)]
    sides = [
        client.wrap_bio(ends[0], ends[1], server_hostname="anything"),
        server.wrap_bio(ends[1], ends[0], server_side=True),
    ]
    done: set[int] = set()
    while len(done) < 2:
        for number, side in enumerate(sides):
            try:
                side.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return str(error)
    return "agreed"


def test_a_context_offers_no_old_tls(made: Made) -> None:
    context = server_context(*made)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
