"""docs/internals/add-a-drafter.md, followed word for word in a copy of the sources: one file and one row, and the
new method is served, in `hybrid` and `auto`, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from guides import ROOT, completed, drafted, followed

from bench.running_mesh import RunningMesh

PAGE = ROOT / "docs" / "internals" / "add-a-drafter.md"


def complete(mesh: RunningMesh, method: str) -> str:
    return completed(mesh, "smollm2-135m-instruct", method, "once upon a time", max_tokens=20)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    root = tmp_path_factory.mktemp("sources")
    files, rows = followed(PAGE, root, "        Method(\n            NAIVE")
    assert len(files) == len(rows) == 1
    settings = {
        "engine": "mock", "mock_profile": '{"step_ms": 5, "vocab_size": 49152}',
        "method": "echo", "hybrid_first": "echo", "hybrid_then": "ngram", "draft_deadline_ms": 5000,
    }  # fmt: skip
    running = RunningMesh(tmp_path_factory.mktemp("mesh"), settings, root=root)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


@pytest.mark.model
@pytest.mark.parametrize("method", ["echo", "hybrid", "auto"])
def test_a_drafter_that_was_added_as_the_page_says_is_served(mesh: RunningMesh, method: str) -> None:
    before, plain = drafted(mesh, "echo"), complete(mesh, "naive")
    # auto waits for drafts no longer than that pays: on a busy machine the first answers may come too late.
    for _ in range(40):
        assert complete(mesh, method) == plain, "law 3"
        if drafted(mesh, "echo") > before:
            return
    raise AssertionError(f"{method} never asked the drafter")
