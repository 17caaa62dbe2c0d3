"""The certificate of the HTTP server (ssl_certfile, ssl_keyfile), and how programs of this machine trust it.

Knows no sockets; the server's side of a connection is services/streamer/door/handshake.py.
"""

from __future__ import annotations

import ssl
from pathlib import Path

END = "-----END CERTIFICATE-----"


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


def trusting(certfile: str) -> ssl.SSLContext:
    """For a client that knows the server's own certificate: this one and no other, whatever name it is for."""
    text = Path(certfile).read_text(encoding="ascii", errors="replace")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # The server's own comes first; its issuers would vouch for others, too.
    first = text.find("-----BEGIN CERTIFICATE-----")
    context.load_verify_locations(cadata=text[first : text.index(END) + len(END)])
    return context
