"""How many processes run the tests of `make test`."""

from __future__ import annotations

import os

import pytest


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="asks which processors there are")
def test_there_is_one_more_than_processors_unless_a_number_is_set(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pytestconfig.hook.pytest_xdist_auto_num_workers
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    assert asked(config=pytestconfig) == len(os.sched_getaffinity(0)) + 1
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "7")
    assert asked(config=pytestconfig) == 7
