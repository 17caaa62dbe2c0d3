"""What is told of an outage: when the server served again, how often it was started again, and when it is given up."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bench.failures import outages
from bench.failures.outages import GIVEN_UP_S, served_again, strike


class FakeServer:
    """Answers the probes from a time on. `ends`: it has ended when it was struck, and is started again."""

    port, url = 1, ""

    def __init__(self, ends: bool = False) -> None:
        self._ends = ends
        self.revived: list[bool] = []

    def model_process(self) -> int:
        # Nobody's.
        return 1 << 30

    def revive(self, hung: bool) -> bool:
        if not (self._ends or hung):
            return False
        self.revived.append(hung)
        self._ends = False
        return True


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTime]:
    found = FakeTime()
    monkeypatch.setattr(outages, "time", found)
    yield found


def serves_after(clock: FakeTime, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    at = clock.now + seconds
    monkeypatch.setattr(outages, "probed", lambda port: clock.now >= at)


def test_what_serves_again_by_itself_is_not_started(clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    serves_after(clock, monkeypatch, 3.0)
    server = FakeServer()
    told = served_again(server, clock.now)
    assert told["restarts"] == 0 and 3.0 <= told["served again after, s"] < 3.2 and server.revived == []


def test_what_has_ended_is_started_at_once(clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    serves_after(clock, monkeypatch, 30.0)
    server = FakeServer(ends=True)
    assert served_again(server, clock.now)["restarts"] == 1 and server.revived == [False]


def test_what_hangs_is_killed_once_and_then_given_up(clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    serves_after(clock, monkeypatch, 10 * GIVEN_UP_S)
    server = FakeServer()
    assert served_again(server, clock.now) == {"served again after, s": None, "restarts": 1}
    assert server.revived == [True] and clock.now < 100.0 + 2 * GIVEN_UP_S + 1


def test_a_process_that_was_gone_when_it_was_to_be_struck_is_an_error(clock: FakeTime) -> None:
    assert not os.path.exists(f"/proc/{FakeServer().model_process()}")
    with pytest.raises(ProcessLookupError):
        strike(FakeServer(), "kill")
