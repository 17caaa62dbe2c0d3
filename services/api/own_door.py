"""How programs of this machine reach the HTTP API of the mesh with these settings. Knows no HTTP client."""

from __future__ import annotations

import ssl

from services.api.hosts import client_host, http_url
from services.api.settings import Settings
from specmesh.certificates import trusting


def own_url(settings: Settings) -> str:
    return http_url(client_host(settings.host), settings.port, has_tls(settings))


def own_context(settings: Settings) -> ssl.SSLContext | None:
    """None without TLS, or where the certificate can't be read: then the client trusts what the machine does."""
    if not has_tls(settings):
        return None
    try:
        return trusting(settings.ssl_certfile)
    except (OSError, ValueError):
        return None


def has_tls(settings: Settings) -> bool:
    return bool(settings.ssl_certfile) and not settings.uds
