"""docs/operate/compatibility.md against the code: each version that it names is the one that is checked or refused."""

from __future__ import annotations

import re
import tomllib

from fences import ROOT

from mesh.envelope import VERSION as PROTOCOL
from services.cli.doctor.gpu import LEAST_CAPABILITY
from services.cli.doctor.machine import LEAST_TORCH, LEAST_TRITON
from services.proposer.segments.file import VERSION as SEGMENTS
from services.proposer.store.folder import _FORMAT as STORE

PAGE = (ROOT / "docs" / "operate" / "compatibility.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


def row(begins: str) -> str:
    """What works."""
    [found] = re.findall(rf"^\| {re.escape(begins)}[^|]*\| ([^|]*) \|", PAGE, re.MULTILINE)
    return str(found)


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def pinned(package: str) -> str:
    [found] = re.findall(rf"^{package}==(\S+)", CONSTRAINTS, re.MULTILINE)
    return str(found)


def least(extra: str, package: str) -> str:
    [found] = [each.partition(">=")[2] for each in PROJECT["optional-dependencies"][extra] if each.startswith(package)]
    return str(found)


def test_versions_of_packages_are_those_that_are_checked() -> None:
    assert row("Python").startswith(PROJECT["requires-python"].removeprefix(">=") + " and newer")
    assert row("torch").startswith(f"{dotted(LEAST_TORCH)} and newer; tested with {pinned('torch')}")
    assert row("triton").startswith(f"{dotted(LEAST_TRITON)} and newer")
    assert f"{pinned('triton')} for torch {pinned('torch')}" in row("triton")
    assert row("GPU").startswith(f"compute capability {dotted(LEAST_CAPABILITY)} and newer")
    assert row("Ray, NIXL") == f"{least('ray', 'ray')} and newer, {least('nixl', 'nixl')} and newer"


def test_formats_are_those_that_are_written() -> None:
    assert f"protocol version, {PROTOCOL} (" in row("processes of another release")
    assert row("`store_dir` of another release") == f"store format {STORE}, segments of version {SEGMENTS}"


def test_what_ran_on_a_gpu_is_in_a_row_of_results() -> None:
    rows = (ROOT / "bench" / "results" / "gpu_environment.jsonl").read_text()
    [torch] = re.findall(r"on a GPU (\S+)$", row("torch"))
    [python] = re.findall(r"on a GPU, (\S+)$", row("Python"))
    [cuda] = re.findall(r"run with (\S+)$", row("CUDA"))
    assert f'"torch": "{torch}"' in rows and f'"python": "{python}.' in rows and f'"torch_cuda": "{cuda}"' in rows
