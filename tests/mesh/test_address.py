"""Endpoints, names, epochs: what is accepted, and the rule about keys."""

from __future__ import annotations

import pytest

from mesh.address import IPC_PATH_BYTES, Endpoint, check_name, require_keys, routing_id
from mesh.errors import Insecure


@pytest.mark.parametrize("text", ["ipc:///run/x.sock", "tcp://host:7000", "tcp://[::1]:7000", "tcp://*:*", "mem://a"])
def test_an_endpoint_is_read_and_written(text: str) -> None:
    assert str(Endpoint.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "host:1", "tcp://host", "tcp://host:99999", "tcp://host:x", "pgm://h:1", "ipc://"]
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Endpoint.parse(text)


def test_a_path_longer_than_the_kernel_takes_is_refused_here() -> None:
    Endpoint.parse("ipc://" + "x" * IPC_PATH_BYTES)
    with pytest.raises(ValueError, match="107"):
        Endpoint.parse("ipc://" + "x" * (IPC_PATH_BYTES + 1))


@pytest.mark.parametrize(
    ("text", "needed"), [("ipc:///x", False), ("inproc://x", False), ("tcp://127.0.0.1:1", True), ("tcp://*:1", True)]
)
def test_whatever_is_not_local_needs_keys(text: str, needed: bool) -> None:
    endpoint = Endpoint.parse(text)
    assert endpoint.needs_keys is needed
    require_keys(endpoint, True, "bind")
    if needed:
        with pytest.raises(Insecure):
            require_keys(endpoint, False, "bind")


@pytest.mark.parametrize("name", ["", "a|b", "a b", "-a", "x" * 121, "ä"])
def test_a_name_that_would_confuse_a_routing_id_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        check_name(name)


def test_a_routing_id_fits_and_tells_sockets_apart() -> None:
    longest = routing_id(check_name("n" * 120), 2**63, 10**9)
    assert len(longest) <= 255
    assert len({routing_id("n", 1, 1), routing_id("n", 2, 1), routing_id("n", 1, 2)}) == 3
