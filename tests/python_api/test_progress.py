"""The line that shows how far many prompts are, and who sees it."""

from __future__ import annotations

import io
import sys

import pytest

from specmesh import LLM, SamplingParams
from specmesh.progress import NOTEBOOK, Progress, shown_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_tells_share_speed_and_acceptance_and_leaves_nothing_of_a_longer_one() -> None:
    out, clock = io.StringIO(), [0.0]
    progress = Progress(out, 4, lambda: clock[0])
    clock[0] = 2.0
    for _ in range(2):
        progress.add(30, {"num_draft_tokens": 40, "num_accepted_draft_tokens": 10})
    progress.show()
    assert out.getvalue() == f"\r[{'#' * 10:<20}]  50%  2 of 4, 30 tokens/s, 25% of drafts accepted"
    clock[0] = 100.0
    progress.end()
    last = out.getvalue().rpartition("\r")[2]
    assert len(last.removesuffix("\n")) > len(progress.line()), "the rest is overwritten"


def test_of_an_unknown_number_answers_are_counted() -> None:
    progress = Progress(io.StringIO(), None, lambda: 1.0)
    progress.add(3, {})
    assert progress.line().startswith("1 answers, ") and "accepted" not in progress.line()


def test_only_a_terminal_and_a_notebook_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_for(["a"]) is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert shown_for(["a"]) is not None
    monkeypatch.setattr(sys, "stderr", type("OutStream", (io.StringIO,), {"__module__": NOTEBOOK})())
    assert shown_for(iter(["a"])) is not None


def test_prompts_show_it_unless_use_tqdm_is_false(mock_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    seen = []
    for shown in (True, False):
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        mock_llm.generate([[100], [101]], params, use_tqdm=shown)
        seen.append(terminal.getvalue())
    assert "100%  2 of 2, " in seen[0] and seen[0].endswith("\n") and seen[1] == ""
