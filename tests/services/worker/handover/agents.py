"""Agents that read pages out of other workers' memory: NIXL's, where it is installed, and one that copies within this
process and does what a test says."""

from __future__ import annotations

import ctypes
import importlib.util
import secrets
from collections.abc import Callable, Sequence

import pytest

from services.api.messages import LentMemory
from services.worker.handover import nixl
from services.worker.handover.nixl import Block, Outcome

needs_nixl = pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="NIXL isn't installed: make nixl")
AGENTS = ["copies", pytest.param("nixl", marks=[needs_nixl, pytest.mark.nixl])]


class CopyingAgent:
    """services/worker/handover/nixl.py's NixlAgent. With `holds` its reads wait for `go_on`."""

    made: dict[str, CopyingAgent] = {}  # noqa: RUF012

    def __init__(self, regions: Sequence[Block], on_gpu: bool) -> None:
        assert not on_gpu
        self.name = f"copies-{secrets.token_hex(4)}"
        self.metadata = self.name.encode()
        self.regions, self.loans, self.reads = regions, 0, 0
        self.holds, self.fails = False, False
        self.held: list[Callable[[], None]] = []
        self.made[self.name] = self

    def has(self, address: int, size: int) -> bool:
        return any(first <= address and address + size <= first + whole for first, whole, _ in self.regions)

    def read(self, lent: LentMemory, blocks: Sequence[Block], back: Callable[[Outcome], None]) -> None:
        self.reads += 1
        other = self.made.get(lent.agent)
        if other is None or not other.loans or lent.metadata != other.metadata:
            back("refused")
            return
        if not all(self.has(here, size) and other.has(there, size) for here, there, size in blocks):
            back("refused")
        elif self.fails:
            back("failed")
        else:
            def copy() -> None:
                for here, there, size in blocks:
                    ctypes.memmove(here, there, size)
                back("done")

            self.held.append(copy)
            if not self.holds:
                self.go_on()

    def go_on(self) -> None:
        held, self.held = self.held, []
        for copy in held:
            copy()

    def lends(self, more: int) -> None:
        self.loans += more

    def close(self) -> None:
        assert self.loans == 0
        del self.made[self.name]


def use_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of NIXL's, whether or not that is installed."""
    monkeypatch.setattr(nixl, "NixlAgent", CopyingAgent)
    monkeypatch.setattr(nixl, "require_nixl", lambda transport: None)
