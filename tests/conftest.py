"""For all tests. Threads of torch that wait must not spin: beside other work on few cores that makes a step
tens of times slower. The target's process gets the same settings (services/runtime/process.py); OpenMP reads them
once, when torch is imported, which is why they stand here. Triton's interpreter is chosen in the same way.

And how long a test may take: pyproject.toml says it for most.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kernels import interpreter

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("KMP_BLOCKTIME", "0")

interpreter.use_without_gpu()

# Seconds for tests with these markers.
LIMITS_S = {"slow": 1800, "ray": 1800, "docker": 3600}
# Folders with files of many seconds.
LONG = (
    "tests/flow/", "tests/attacks/", "tests/laws/", "tests/services/worker/", "tests/models/", "tests/python_api/",
    "tests/kernels/", "tests/docs/", "tests/services/training/",
)  # fmt: skip
# Files that share a mesh (tests/flow/conftest.py), by its name: one process runs them all.
SHARED_MESH = {
    f"tests/flow/test_{name}.py": mesh
    for mesh, names in (
        ("real_mesh", ("messages", "responses", "structured_output", "tools")),
        ("float32_mesh", ("deaths_in_a_tool_call", "embeddings", "loglikelihood", "same_text_as_transformers")),
    )
    for name in names
}
# Compiled loops that hang see no signal: this much later the process ends, and xdist starts another.
GRACE_S = 60
_stderr = pytest.StashKey[int]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """What `-n auto` is: one more than there are processors. Tests of whole meshes wait more than they compute, and the
    processor that is left free does another's work. PYTEST_XDIST_AUTO_NUM_WORKERS decides, where it is set."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    # macOS has no affinity.
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processors + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`: a process takes whole files, in the order of the collection, or all those of one mesh."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return SHARED_MESH.get(file, file)

    # Else the files with the most tests come first, which are the shortest.
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    # What is captured would be lost with the process.
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[_stderr] = os.dup(2)
    # A shell's background job ignores Ctrl-C, and so would all processes that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A process takes whole files: long ones that come last would keep one process busy while the others wait.
    items.sort(key=lambda item: (_file(item) not in SHARED_MESH, not item.nodeid.startswith(LONG)))
    # A machine with a GPU may have pytest alone.
    if not config.pluginmanager.hasplugin("timeout"):
        return
    for item in items:
        limits = [seconds for marker, seconds in LIMITS_S.items() if item.get_closest_marker(marker)]
        if limits and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(max(limits)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What wasn't tested and why, which is a letter among thousands otherwise: tools that are missing, above all."""
    # Each with (file, line, reason).
    told = [each.longrepr for each in terminalreporter.getreports("skipped")]
    reasons = Counter(str(each[2]).removeprefix("Skipped: ") for each in told if isinstance(each, (tuple, list)))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"not run: {count}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    limit = _limit(item)
    if limit:
        faulthandler.dump_traceback_later(limit + GRACE_S, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _limit(item: pytest.Item) -> float:
    """Seconds; 0: none."""
    if not item.config.pluginmanager.hasplugin("timeout"):
        return 0.0
    marker, asked = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout") if asked is None else asked)
