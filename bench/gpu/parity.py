"""Do the kernels agree with their references on this GPU? The tests of kernels/ that mean something where a GPU is.

Each file is a pytest process of its own: a kernel that reads where it may not ends that process and no other. Some run
side by side, since they wait for their compiler most of the time. What isn't done when the time is up is named. Tests
with the model run where it is here: a GPU's machine may reach nothing to fetch it from.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.checkout import user_cache
from bench.rows import ROOT
from bench.shown import Shown
from bench.suite import LeftOut

HELP = "the kernels' tests on a GPU, against plain torch: how many pass"
# In this order. They run in the interpreter elsewhere; the compiled loops of the CPU are not among them.
TESTS = ("tests/gpu/test_*.py", "tests/kernels/*/test_fused.py", "tests/kernels/verify/test_block_faults.py",
         "tests/kernels/verify/test_on_device.py")  # fmt: skip
MODEL = "smollm2-135m-instruct"
NAMED = 20
# Of these machines' cores, and of the GPU's memory.
SIDE_BY_SIDE, CORES_EACH = 8, 2
# What a dry run shows that it works with.
DRY_TESTS = ("tests/kernels/norm_rope_act/test_fused.py::test_without_a_delta_the_residual_stays",)
SHOWN = (Shown("The kernels' tests", "", {"passed": "passed", "skipped": "skipped", "files": "files"}),)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tests", action="append", default=[], help="these files instead of all")
    parser.add_argument("--seconds", type=float, default=200.0, help="for all of them")
    parser.add_argument("--dry-run", action="store_true", help="one test, in the interpreter")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if importlib.util.find_spec("pytest") is None:
        raise LeftOut("the kernels' tests need pytest, which isn't here")
    model = (user_cache() / "models" / MODEL).is_dir()
    marked = "not slow" if model else "not slow and not model"
    # Where a dry run happens, others may use the cores.
    end = time.monotonic() + options.seconds * (10 if options.dry_run else 1)
    chosen = options.tests or (list(DRY_TESTS) if options.dry_run else files())
    with ThreadPoolExecutor(max(1, min(SIDE_BY_SIDE, (os.cpu_count() or 1) // CORES_EACH))) as pool:
        reports = pool.map(lambda file: tested(file, marked, end - time.monotonic()), chosen)
        seen: dict[str, Any] = dict(zip(chosen, reports, strict=True))
    counts = {what: sum(each[what] for each in seen.values()) for what in ("passed", "skipped")}
    figures: dict[str, Any] = {"dry_run": True} if options.dry_run else {}
    return figures | {"model": model, **counts, "files": seen, "missed": list(missed(seen))}


def files() -> list[str]:
    return [str(path.relative_to(ROOT)) for pattern in TESTS for path in sorted(ROOT.glob(pattern))]


def tested(file: str, marked: str, seconds: float) -> dict[str, Any]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        report = Path(folder) / "report.xml"
        command = ["-m", "pytest", file, "-m", marked, "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        try:
            subprocess.run([sys.executable, *command], cwd=ROOT, timeout=max(0.0, seconds))
            ended = told(report.read_text()) if report.exists() else {"ended": "without a report"}
        except subprocess.TimeoutExpired:
            ended = {"ended": "by the clock"}
    return {"passed": 0, "failed": [], "skipped": 0, "seconds": round(time.monotonic() - started, 1)} | ended


def told(report: str) -> dict[str, Any]:
    """Of pytest's report in JUnit's form."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    failed = [each.get("name", "") for each in cases if has(each, "failure") or has(each, "error")]
    skipped = sum(has(each, "skipped") for each in cases)
    return {"passed": len(cases) - len(failed) - skipped, "failed": failed, "skipped": skipped}


def has(case: ElementTree.Element, what: str) -> bool:
    return case.find(what) is not None


def missed(seen: dict[str, Any]) -> Iterator[str]:
    failed = [f"{file}: {name} failed" for file, each in seen.items() for name in each["failed"]]
    yield from failed[:NAMED]
    if len(failed) > NAMED:
        yield f"and {len(failed) - NAMED} more failed"
    yield from (f"{file} ended {each['ended']}" for file, each in seen.items() if "ended" in each)
    if not any(each["passed"] for each in seen.values()):
        yield "no test passed"
