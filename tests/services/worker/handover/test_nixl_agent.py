"""NIXL itself, between two processes: what becomes of a read when the other one dies or stops in the middle of it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from agents import needs_nixl
from lending_process import SIZE, contents

from services.api.messages import LentMemory
from services.api.page_transport import NoNixl
from services.worker.handover.nixl import NixlAgent, Outcome

pytestmark = [needs_nixl, pytest.mark.nixl]
ROOT = Path(__file__).parents[4]


class Two:
    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("lending_process.py"))]
        there = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=there, text=True)
        assert self.process.stdout is not None
        name, metadata, self.address = json.loads(self.process.stdout.readline())
        self.lender = LentMemory(name, bytes.fromhex(metadata), 0, [], [])
        self.memory = torch.zeros(SIZE, dtype=torch.uint8)
        self.agent = NixlAgent([(self.memory.data_ptr(), SIZE, 0)], False)
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def read(self, begin: int = 0, size: int = SIZE, lender: LentMemory | None = None) -> None:
        self.memory.zero_()
        block = (self.memory.data_ptr(), self.address + begin, size)
        self.agent.read(lender or self.lender, [block], self.outcomes.put)

    def outcome(self) -> Outcome:
        return self.outcomes.get(timeout=60)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.agent.close()


# As between machines, where a read needs both sides; and the fastest way there is on this one.
@pytest.fixture(params=["tcp", "all"])
def two(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    monkeypatch.setenv("UCX_TLS", request.param)
    both = Two()
    yield both
    both.close()


def test_memory_of_another_process_is_read(two: Two) -> None:
    for _ in range(3):
        two.read()
        assert two.outcome() == "done" and torch.equal(two.memory, contents())


def test_what_another_process_has_not_registered_is_refused(two: Two) -> None:
    for begin, size in ((SIZE, 64), (-64, 64), (64, SIZE)):
        two.read(begin, size)
        assert two.outcome() == "refused" and not two.memory.any()
    two.read()
    assert two.outcome() == "done"


@pytest.mark.parametrize("metadata", [b"", b"nonsense", bytes(400)])
def test_metadata_that_are_none_are_refused(two: Two, metadata: bytes) -> None:
    two.read(lender=LentMemory(two.lender.agent, metadata, 0, [], []))
    assert two.outcome() == "refused"
    two.read(lender=LentMemory("another", two.lender.metadata, 0, [], []))
    assert two.outcome() == "refused"
    two.read()
    assert two.outcome() == "done"


def test_a_process_that_died_is_not_read_from_and_another_one_is(two: Two) -> None:
    two.read()
    assert two.outcome() == "done"
    two.signal(signal.SIGKILL)
    two.process.wait()
    two.read()
    assert two.outcome() in ("refused", "failed") and not two.memory.any()
    successor = Two()
    try:
        two.address = successor.address
        two.read(lender=successor.lender)
        assert two.outcome() == "done" and torch.equal(two.memory, contents())
    finally:
        successor.close()


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
def test_a_process_that_stops_in_the_middle_of_a_read(monkeypatch: pytest.MonkeyPatch, then: signal.Signals) -> None:
    """Until the read has ended its bytes may come: that is why slots aren't given back before."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    two = Two()
    try:
        two.read()
        assert two.outcome() == "done"
        two.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, two.process.pid, os.WSTOPPED)
        two.read()
        with pytest.raises(queue.Empty):
            two.outcomes.get(timeout=0.5)
        two.signal(then)
        if then == signal.SIGCONT:
            assert two.outcome() == "done" and torch.equal(two.memory, contents())
        else:
            assert two.outcome() == "failed"
    finally:
        two.close()


def test_memory_that_cannot_be_registered_is_refused_by_name() -> None:
    with pytest.raises(NoNixl, match="page_transport nixl"):
        NixlAgent([(4096, 1 << 40, 0)], True)
