"""What is made of pytest's report, and of a file of tests that doesn't end."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.gpu import parity

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_right"/>
<testcase classname="tests.a" name="test_wrong[bfloat16]"><failure message="no"/></testcase>
<testcase classname="tests.a" name="test_broken"><error message="no"/></testcase>
<testcase classname="tests.a" name="test_elsewhere"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_and_what_failed_is_named() -> None:
    told = parity.told(REPORT)
    assert told == {"passed": 1, "failed": ["test_wrong[bfloat16]", "test_broken"], "skipped": 1}
    missed = list(parity.missed({"a.py": told}))
    assert missed == ["a.py: test_wrong[bfloat16] failed", "a.py: test_broken failed"]


def test_of_many_failures_some_are_named() -> None:
    told = {"passed": 1, "failed": [f"test_{number}" for number in range(50)], "skipped": 0}
    missed = list(parity.missed({"a.py": told}))
    assert len(missed) == parity.NAMED + 1 and missed[-1] == "and 30 more failed"


def test_where_nothing_passes_nothing_was_shown() -> None:
    assert list(parity.missed({"a.py": {"passed": 0, "failed": [], "skipped": 9}})) == ["no test passed"]


def test_each_file_runs_by_itself_and_one_that_breaks_ends_alone(tmp_path: Path) -> None:
    right, dead = tmp_path / "test_right.py", tmp_path / "test_dead.py"
    right.write_text("def test_it(): pass\n")
    dead.write_text("import os\ndef test_it(): os.abort()\n")
    figures = parity.measure(argparse.Namespace(tests=[str(dead), str(right)], seconds=300.0, dry_run=False))
    assert figures["passed"] == 1 and figures["missed"] == [f"{dead} ended without a report"]


def test_what_is_not_done_when_the_time_is_up_is_named(tmp_path: Path) -> None:
    file = tmp_path / "test_slow.py"
    file.write_text("def test_it(): pass\n")
    figures = parity.measure(argparse.Namespace(tests=[str(file)], seconds=0.0, dry_run=False))
    assert figures["missed"] == [f"{file} ended by the clock", "no test passed"]


def test_the_files_are_those_that_hold_kernels_to_their_references() -> None:
    found = parity.files()
    assert found[0].startswith("tests/gpu/") and "tests/kernels/verify/test_fused.py" in found
    assert not any("cpu" in Path(name).name for name in found)
