"""A worker's ranks on two nodes, each a process tree of its own: the bits of one machine, and an end for all when one
of them ends."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from other_nodes import OtherNode, other_node
from running_mesh import has_ended, until
from test_ranks import loaded, said
from tiny_folder import write_tiny_model

from bench.running_mesh import free_ports
from models.group import RankLost
from services.worker.parallel.meeting import Meeting
from services.worker.running.torch_model import TorchModel

HERE = "127.0.0.1"


def there(folder: Path, port: int, ranks: int = 2, **more: Any) -> dict[str, Any]:
    """Flags of the other node."""
    return {
        "model": folder, "tensor_parallel_size": ranks, "nnodes": 2, "master_addr": f"{HERE}:{port}",
        "dtype": "float32", "threads": 2, **more,
    }  # fmt: skip


def meeting(port: int, secret: bytes = b"") -> Meeting:
    return Meeting(HERE, port, 2, secret)


def bits(model: TorchModel) -> list[torch.Tensor]:
    """Of a text's logits, with a prompt in two chunks."""
    found: list[torch.Tensor] = []
    forward = model.forward

    def kept(rows: Any) -> Any:
        output = forward(rows)
        found.append(output.logits.clone())
        return output

    model.forward = kept  # type: ignore[method-assign]
    said(model)
    return found


@pytest.mark.parametrize(("executor", "ranks"), [("plain", 2), ("compiled", 2), ("compiled", 4)])
def test_ranks_on_two_nodes_compute_the_bits_of_as_many_on_one(executor: str, ranks: int, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    with torch.inference_mode():
        with loaded(model, executor=executor, ranks=ranks) as (one, _):
            expected, path = bits(one), one.facts.path
        port = free_ports(1)
        with other_node(tmp_path / "node.log", **there(model, port, ranks)) as node:
            with loaded(model, executor=executor, ranks=ranks, meeting=meeting(port)) as (two, own):
                assert own is not None
                assert len(node.ranks()) == ranks // 2 and len(own.processes.running) == ranks // 2 - 1
                assert two.facts.path == path
                found = bits(two)
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))
