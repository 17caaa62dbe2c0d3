"""Where the nodes of a split worker meet, and what of the settings that say so can't be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def meeting_address(master_addr: str, master_port: int) -> tuple[str, int]:
    """Of HOST, HOST:PORT or [IPV6]:PORT, whose port goes before `master_port`. Raises ValueError."""
    host, colon, port = master_addr.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = master_addr, str(master_port)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{master_addr!r} is neither HOST nor HOST:PORT")
    host = host.removeprefix("[").removesuffix("]")
    if host in ("0.0.0.0", "::"):
        raise ValueError(f"{host} is no address at which others find node 0")
    return host, int(port)


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
