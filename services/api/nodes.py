"""Where the nodes of a split worker meet, and what of the settings that say so can't be."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from ipaddress import IPv6Address
from typing import Any

# The role of a node that isn't the first.
WORKER_NODE = "worker-node"
# The reason with which a node refuses a worker that it wasn't started for.
ANOTHER_WORKER = "another_worker"


def meeting_address(master_addr: str, master_port: int) -> tuple[str, int]:
    """Of HOST or HOST:PORT, whose port goes before `master_port`. Raises ValueError."""
    host, colon, port = master_addr.rpartition(":")
    # An IPv6 address is full of colons: with a port it is in brackets.
    if not colon or (":" in host and not host.endswith("]")):
        host, port = master_addr, str(master_port)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{master_addr!r} is neither HOST nor HOST:PORT")
    host = host.removeprefix("[").removesuffix("]")
    if host in ("0.0.0.0", "::"):
        raise ValueError(f"{host} is no address at which others find node 0")
    if ":" in host:
        IPv6Address(host)
    return host, int(port)


def meeting_endpoint(master_addr: str, master_port: int, node: int) -> str:
    """Of the directory that all nodes find each other in. Raises ValueError."""
    host, port = meeting_address(master_addr, master_port)
    # Node 0 binds it, and names can't be bound.
    return tcp_endpoint(host if node else own_address(host), port)


def tcp_endpoint(address: str, port: int) -> str:
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def own_address(host: str) -> str:
    """The address of this machine behind its name. Raises ValueError."""
    if ":" in host:
        return host
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise ValueError(f"master_addr: {host} isn't known here: {error.strerror or error}") from error


def address_towards(master_addr: str, master_port: int) -> str:
    """This machine's address, as node 0 sees it. Raises OSError. Sends nothing."""
    host, port = meeting_address(master_addr, master_port)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def ranks_of(node: int, nodes: int, ranks: int) -> str:
    """Which of all ranks are on a node, in words."""
    here = ranks // nodes
    first = node * here
    return f"rank {first}" if here == 1 else f"ranks {first} to {first + here - 1}"


def problems_of(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A setting's name, and what is wrong with it."""
    nodes, ranks = values["nnodes"], values["tensor_parallel_size"]
    if values["node_rank"] >= nodes:
        yield "node_rank", f"{values['node_rank']} is none of 0 to {nodes - 1}: nnodes is {nodes}"
    if nodes == 1:
        return
    if not values["master_addr"]:
        yield "nnodes", "set master_addr, too: the address of node 0, at which the nodes meet"
    else:
        try:
            meeting_address(values["master_addr"], values["master_port"])
        except ValueError as error:
            yield "master_addr", str(error)
    if not values["keys_dir"]:
        yield (
            "nnodes",
            "set keys_dir, too: machines talk to each other with keys; make them with `specmesh keys make`, and copy"
            " the folder to every node",
        )
    if ranks % nodes:
        yield "nnodes", f"tensor_parallel_size of {ranks} can't be shared out evenly: set it to a multiple of {nodes}"
    for name in ("prefill_tensor_parallel_size", "decode_tensor_parallel_size"):
        if values[name]:
            yield name, "with several nodes set tensor_parallel_size alone"
    for name in ("workers", "prefill_workers", "decode_workers"):
        if values[name] > 1 or (values[name] and name != "workers"):
            yield (
                name,
                "a worker over several nodes is the only one that `specmesh up` starts; `specmesh run worker` starts"
                " another, with a master_port of its own",
            )
