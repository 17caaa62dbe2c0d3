"""How many processes run the tests of `make test`, and which tests one of them takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import SHARED_MESH

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="asks which processors there are")
def test_there_is_one_more_than_processors_unless_a_number_is_set(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pytestconfig.hook.pytest_xdist_auto_num_workers
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    assert asked(config=pytestconfig) == len(os.sched_getaffinity(0)) + 1
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "7")
    assert asked(config=pytestconfig) == 7


def test_files_that_share_a_mesh_run_in_one_process_and_others_by_themselves(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = pytestconfig.hook.pytest_xdist_make_scheduler
    for name, value in {"dist": "load", "tx": ["popen"], "loadscopereorder": True}.items():
        monkeypatch.setattr(pytestconfig.option, name, value)
    assert ask(config=pytestconfig, log=None) is None
    monkeypatch.setattr(pytestconfig.option, "dist", "loadfile")
    scope = ask(config=pytestconfig, log=None)._split_scope
    assert scope("tests/flow/test_tools.py::test_a[1]") == scope("tests/flow/test_responses.py::test_b")
    assert scope("tests/flow/test_nodes.py::test_a[x::y]") == "tests/flow/test_nodes.py"
    assert not pytestconfig.option.loadscopereorder


def test_every_file_that_uses_a_shared_mesh_is_among_them() -> None:
    using = {}
    for path in (ROOT / "tests" / "flow").glob("test_*.py"):
        text = path.read_text()
        using |= {str(path.relative_to(ROOT)): name for name in set(SHARED_MESH.values()) if f"{name}:" in text}
    assert using == SHARED_MESH
