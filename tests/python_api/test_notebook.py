"""The notebook of the docs, run end to end; and a kernel that is killed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from bench.running_mesh import descendants

from .conftest import MOCK
from .test_lives import gone

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "use" / "python.ipynb"
pytestmark = pytest.mark.slow
# Enough for a stream that is still going on when the kernel is killed.
STREAMING = f"""
from specmesh import LLM, SamplingParams
llm = LLM(**{MOCK!r})
pieces = llm.stream([100, 101], SamplingParams(max_tokens=8000, ignore_eos=True))
next(pieces).text
"""


def client_of(notebook: Any) -> Any:
    return nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": ROOT}})


def printed(cell: Any) -> str:
    """What a cell printed, and its value."""
    return "".join(each.get("text", each.get("data", {}).get("text/plain", "")) for each in cell.outputs)


@pytest.mark.model
def test_the_notebook_runs_from_its_first_cell_to_its_last() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    assert not any(cell.outputs or cell.execution_count for cell in code.values()), "outputs aren't kept"
    client_of(notebook).execute()
    said = {name: printed(cell) for name, cell in code.items()}
    assert said["generate"].count("→") == 8 and "100%  8 of 8, " in said["generate"], "the progress is shown"
    assert "Jupiter" in said["stream"] and re.search(r"(suffix|shared): [1-9] of [1-9] accepted", said["sources"])
    assert "'city'" in said["schema"]
    # Behind the progress.
    near, far = map(float, said["embed"].split()[-2:])
    assert far < near < 1


def test_a_kernel_that_is_killed_leaves_no_process() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(STREAMING)])
    client = client_of(notebook)
    with client.setup_kernel():
        client.execute_cell(notebook.cells[0], 0)
        kernel = client.km.provisioner.pid
        pids = list(descendants(kernel))
        assert len(pids) >= 5
        os.kill(kernel, signal.SIGKILL)
        assert gone(pids, 5)
