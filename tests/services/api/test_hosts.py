"""Names a server without keys answers to, and names a rebinding site could have."""

from __future__ import annotations

import socket

import pytest

from services.api.hosts import AllowedHosts, client_host, http_url


@pytest.mark.parametrize(
    "host",
    [
        "", "localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.0.0.1:8000", "192.168.1.7:8000", "[::1]",
        "[::1]:8000", "[fe80::1%eth0]:8000", "streamer:9100", "app.localhost:8000", "host.docker.internal:8000",
        "worker.llm.svc.cluster.local:9103", socket.gethostname(), f"{socket.gethostname()}.local:8000",
        "bound.example:8000",
    ],
)  # fmt: skip
def test_addresses_own_names_and_names_without_public_dns_are_served(host: str) -> None:
    assert AllowedHosts(bound="bound.example").serves(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "EVIL.example.", "127.0.0.1.evil.example", "127.0.0.1x.com", "1.2.3",
        "localhost.evil.example", "internal.evil", "evil-internal.com", "[evil.example]:80", "user@evil.example",
    ],
)  # fmt: skip
def test_names_that_public_dns_may_have_are_not(host: str) -> None:
    assert not AllowedHosts(bound="127.0.0.1").serves(host)


def test_listed_names_are_served_and_a_star_is_every_name() -> None:
    hosts = AllowedHosts("llm.example, Other.example")
    assert hosts.serves("llm.example:443") and hosts.serves("other.EXAMPLE")
    assert not hosts.serves("evil.example")
    assert AllowedHosts("*").serves("evil.example")


def test_an_origin_is_the_same_with_its_port_or_where_its_name_is_listed() -> None:
    hosts = AllowedHosts()
    assert hosts.same_origin("http://localhost:8000", "localhost:8000")
    assert hosts.same_origin("https://Box", "box")  # TLS ends at a proxy
    for origin in ("null", "", "http://localhost:3000", "http://localhost", "https://evil.example"):
        assert not hosts.same_origin(origin, "localhost:8000")
    assert AllowedHosts("chat.example").same_origin("https://chat.example", "127.0.0.1:8000")
    assert AllowedHosts("*").same_origin("https://evil.example", "127.0.0.1:8000")


@pytest.mark.parametrize(
    ("bound", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"), ("0.0.0.0", "http://127.0.0.1:80"), ("name", "http://name:80"),
        ("::1", "http://[::1]:80"), ("::", "http://[::1]:80"),
    ],
)  # fmt: skip
def test_what_is_bound_has_a_url_for_clients(bound: str, url: str) -> None:
    assert http_url(client_host(bound), 80) == url
