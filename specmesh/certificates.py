"""How a client trusts a server of this machine whose certificate it has as a file."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

_FIRST = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def trusting(certfile: str) -> ssl.SSLContext:
    """Trusts the server's own certificate and no other, whatever name it is for. Raises ValueError, OSError."""
    # The server's own comes first; its issuers would vouch for others, too.
    found = _FIRST.search(Path(certfile).read_text(encoding="ascii", errors="replace"))
    if found is None:
        raise ValueError(f"{certfile} has no certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=found[0])
    return context
