"""The certificate of the HTTP server (ssl_certfile, ssl_keyfile). Clients of this machine: specmesh/certificates.py.

Knows no sockets; the server's side of a connection is services/streamer/door/handshake.py.
"""

from __future__ import annotations

import ssl
from pathlib import Path


def server_context(certfile: str, keyfile: str = "") -> ssl.SSLContext:
    """TLS 1.2 or later with this certificate; without `keyfile` its key is in the same file. Raises ValueError with
    what is wrong and the setting's name."""
    for setting, path in (("ssl_certfile", certfile), ("ssl_keyfile", keyfile or certfile)):
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise ValueError(f"{setting}: {path} cannot be read ({error.strerror})") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certfile)
    except ssl.SSLError:
        raise ValueError(f"ssl_certfile: {certfile} has no certificate in PEM form") from None

    def passphrase() -> str:
        raise ValueError(f"ssl_keyfile: {keyfile or certfile} has a passphrase, which nobody can be asked for")

    try:
        context.load_cert_chain(certfile, keyfile or None, passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"ssl_keyfile: {keyfile} is not the key of the certificate in {certfile}") from None
        raise ValueError(f"ssl_keyfile: {keyfile or certfile} has no private key in PEM form") from None
    return context
