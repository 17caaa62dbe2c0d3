"""A fault of our own drafting code ends drafting, and nothing else."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from services.worker.scheduling.planning import Plan
from services.worker.speculation.guard import GuardedController


class Faulty:
    """A controller in which everything fails."""

    def __init__(self) -> None:
        self.calls = 0
        self.client = self

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any) -> None:
            self.calls += 1
            raise RuntimeError(name)

        return fail


ACTS: dict[str, Any] = {
    "draft": lambda guarded: guarded.draft(Plan([], 0, [])) == ({}, {}),
    "joined": lambda guarded: guarded.joined([], 0) is None,
    "ask_ahead": lambda guarded: guarded.ask_ahead(None) is None,
    "commit": lambda guarded: guarded.commit(None, None) is None,
    "learn": lambda guarded: guarded.learn(None, None, None) is None,
    "forget": lambda guarded: guarded.forget(None, False) is None,
    "move_to": lambda guarded: guarded.move_to("x") is None,
    "tell": lambda guarded: guarded.tell() is False,
    "check_idle": lambda guarded: guarded.check_idle() is None,
}


@pytest.mark.parametrize("name", ACTS)
def test_after_the_first_fault_nothing_of_drafting_is_called_any_more(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    faulty: Any = Faulty()
    guarded = GuardedController(faulty)
    with caplog.at_level(logging.ERROR):
        assert ACTS[name](guarded) and guarded.failed
    assert "goes on without drafts" in caplog.text
    for act in ACTS.values():
        assert act(guarded)
    assert faulty.calls == 1


def test_the_clients_socket_is_closed_even_after_a_fault() -> None:
    faulty: Any = Faulty()
    guarded = GuardedController(faulty)
    guarded.tell()
    guarded.close()
    assert faulty.calls == 2
