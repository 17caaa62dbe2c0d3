"""Addresses of servers, and which Host and Origin headers one without API keys answers.

A site in a browser can make its own name point at this machine (DNS rebinding) and then talk to the server as to
itself. It cannot choose the header Host: that is the site's name. Such a name is public, so it has a dot and is neither
an address nor in a domain that public DNS doesn't have. Knows no HTTP.
"""

from __future__ import annotations

import ipaddress
import re
import socket

EVERY = "*"
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# Never in public DNS: RFC 6761, ICANN's private-use domain (host.docker.internal), and services of Kubernetes.
PRIVATE_DOMAINS = (".localhost", ".internal", ".cluster.local")

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


def client_host(bound: str) -> str:
    """Where clients on this machine reach what is bound to this address or name."""
    return WILDCARDS.get(bound, bound)


def http_url(host: str, port: int, tls: bool = False) -> str:
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def origins_of(listed: str) -> frozenset[str]:
    """The setting cors_origins: what browsers send as Origin, or EVERY. Raises ValueError for anything else."""
    origins = [each.strip().lower() for each in listed.split(",")]
    for each in origins:
        if each not in ("", EVERY) and not _ORIGIN.fullmatch(each):
            raise ValueError(f"{each[:80]!r} is no origin: scheme://host or scheme://host:port, and no path")
    return frozenset(origins) - {""}


class AllowedHosts:
    """`listed`: the setting allowed_hosts, names with commas between. `bound`: the address or name that is bound."""

    def __init__(self, listed: str = "", bound: str = "") -> None:
        self._listed = {each.strip().lower() for each in listed.split(",")} - {""}
        machine = socket.gethostname().lower()
        self._names = {*self._listed, bound.lower(), machine, f"{machine}.local"}

    def serves(self, host: str) -> bool:
        """`host`: the header; empty where a client sent none, which no browser does."""
        name = _name(host)
        if "." not in name or name in self._names or EVERY in self._listed:
            return True
        return name.endswith(PRIVATE_DOMAINS) or _is_address(name)

    def same_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may change something here. A proxy in front may have its own name: listed
        names count as same."""
        place = origin.partition("://")[2].lower()
        return place == host.lower() or _name(place) in self._listed or EVERY in self._listed


def refusal(host: str) -> str:
    return f"The Host header names {host[:80]!r}: without API keys such names are served only if allowed_hosts has them"


def _name(host: str) -> str:
    """Of name:port, address:port or [address]:port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
