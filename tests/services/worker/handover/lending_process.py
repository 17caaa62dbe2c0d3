"""A process whose memory others may read: prints its agent's name, its metadata and the address, then goes on until its
input ends."""

from __future__ import annotations

import json
import sys

import torch

from services.worker.handover.nixl import NixlAgent

SIZE = 4 << 20


def contents() -> torch.Tensor:
    return torch.arange(SIZE, dtype=torch.int64).remainder(251).to(torch.uint8)


if __name__ == "__main__":
    memory = contents()
    agent = NixlAgent([(memory.data_ptr(), SIZE, 0)], False)
    agent.lends(1)
    print(json.dumps([agent.name, agent.metadata.hex(), memory.data_ptr()]), flush=True)
    sys.stdin.read()
