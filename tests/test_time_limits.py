"""A test that hangs is ended, named, and the others run; what isn't run is said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HANGS = """
import time
import pytest

@pytest.fixture
def stopped():
    yield
    print("the fixture has ended")

def test_that_hangs(stopped):
    time.sleep(60)

def test_after_it():
    pass
"""
# No signal is seen before this returns.
HANGS_IN_COMPILED_CODE = """
import numba, numpy

@numba.njit(nogil=True)
def spin(x):
    while x[0] == 0:
        x[1] += 1

# Compiled before the time counts.
spin(numpy.ones(2, numpy.int64))

def test_that_spins():
    spin(numpy.zeros(2, numpy.int64))
"""
LIMITS = """
import pytest

@pytest.mark.slow
def test_slow(): ...

@pytest.mark.slow
@pytest.mark.docker
def test_with_docker(): ...

@pytest.mark.slow
@pytest.mark.timeout(7)
def test_of_its_own(): ...

def test_other(): ...

@pytest.fixture(autouse=True)
def told(request):
    marker = request.node.get_closest_marker("timeout")
    print(request.node.name, *(marker.args if marker else ()))
"""

WITHOUT_TOOLS = """
import pytest

@pytest.mark.skipif(True, reason="needs promtool")
@pytest.mark.parametrize("what", "ab")
def test_with_promtool(what): ...

def test_with_another():
    pytest.skip("needs another tool")

def test_other(): ...
"""


def run(folder: Path, text: str, *words: str, grace: float = 60) -> subprocess.CompletedProcess[str]:
    """A pytest of its own with this project's settings and conftest.py."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    own = (ROOT / "tests" / "conftest.py").read_text().replace("GRACE_S = 60", f"GRACE_S = {grace}")
    (folder / "conftest.py").write_text(own)
    (folder / "test_it.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-o",
        f"pythonpath={ROOT}",
        *words,
        "test_it.py",
    ]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, timeout=200)


def test_a_test_that_hangs_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    done = run(tmp_path, HANGS, "--timeout=1")
    assert done.returncode == 1
    assert "test_that_hangs - Failed: Timeout (>1.0s)" in done.stdout and "1 failed, 1 passed" in done.stdout
    assert "the fixture has ended" in done.stdout


def test_a_process_that_hangs_in_compiled_code_ends_and_says_where(tmp_path: Path) -> None:
    done = run(tmp_path, HANGS_IN_COMPILED_CODE, "--timeout=1", grace=2)
    assert done.returncode == 1
    assert "Timeout (0:00:03)!" in done.stderr and "in test_that_spins" in done.stderr


def test_slow_tests_have_more_time_and_a_limit_of_its_own_is_kept(tmp_path: Path) -> None:
    lines = run(tmp_path, LIMITS, "-s").stdout.replace(".", "\n").split("\n")
    assert {"test_slow 1800", "test_with_docker 3600", "test_of_its_own 7", "test_other"} <= set(lines)


def test_without_the_plugin_tests_run(tmp_path: Path) -> None:
    """Machines with a GPU have what runs there, and pytest."""
    done = run(tmp_path, LIMITS.replace("@pytest.mark.timeout(7)\n", ""), "-p", "no:timeout")
    assert "4 passed" in done.stdout


def test_what_is_not_run_for_want_of_a_tool_is_said_at_the_end(tmp_path: Path) -> None:
    lines = run(tmp_path, WITHOUT_TOOLS).stdout.splitlines()
    assert lines[-3:-1] == ["not run: 1: needs another tool", "not run: 2: needs promtool"]
    assert "1 passed, 3 skipped" in lines[-1]


def test_every_test_has_a_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 600
