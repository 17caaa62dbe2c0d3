"""The page's commands with a real vLLM, where there is one. docs/use/vllm.md."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from vllm_here import PROMPTS, ask, ask_all, counted, engine, needs_vllm

from bench.oracles import vllm_drafter
from bench.running_mesh import descendants
from loadtest.workloads.chat import QUESTIONS

pytestmark = pytest.mark.shows("drafts under vLLM 0.32, on a CPU", "served")
# The engine tells of its last texts when it has rested for two seconds.
RESTED_S = 4.0


@pytest.mark.slow
@needs_vllm
def test_texts_are_vllms_own_drafts_are_accepted_and_a_dead_proposer_costs_nothing_else(tmp_path: Path) -> None:
    vllm_drafter.make_path(tmp_path)
    with engine("off", tmp_path) as url:
        expected = ask_all(url, 1)
    with vllm_drafter.proposer("cold", tmp_path) as proposer, engine("cold", tmp_path) as url:
        assert ask_all(url, 1) == expected
        assert counted(url, "accepted") > 0.3 * counted(url, "draft") > 20
        # Learned from these answers.
        before = counted(url, "accepted")
        assert ask_all(url, 1) == expected
        assert counted(url, "accepted") > 2 * before
        [worker] = descendants(proposer.pid)
        os.kill(worker, 9)
        assert len(ask_all(url, 4)) == len(expected)
        assert len(ask(url, PROMPTS[0], n=3, temperature=0.8)) == 3
        before = counted(url, "accepted")
        assert ask_all(url, 1) == expected
        assert counted(url, "accepted") > before
    log = (tmp_path / "cold.log").read_text()
    assert "specmesh drafts from" in log and "taken for other texts" not in log and "drafts no more" not in log


@pytest.mark.slow
@needs_vllm
def test_engines_at_one_proposer_draft_from_each_others_texts_where_their_namespace_is_the_same(tmp_path: Path) -> None:
    """All three run at the same time, and are asked one after the other."""
    vllm_drafter.make_path(tmp_path)
    with (
        vllm_drafter.proposer("cold", tmp_path),
        engine("cold", tmp_path) as first,
        engine("cold", tmp_path) as second,
        engine("cold", tmp_path, namespace="other") as apart,
    ):
        expected = ask_all(first, 1, QUESTIONS[:6])
        time.sleep(RESTED_S)
        assert ask_all(second, 1, QUESTIONS[:6]) == ask_all(apart, 1, QUESTIONS[:6]) == expected
        alone, shared, kept_apart = (counted(url, "accepted") for url in (first, second, apart))
    assert shared > 2 * alone and kept_apart < shared / 2, (alone, shared, kept_apart)
    log = (tmp_path / "cold.log").read_text()
    assert log.count("specmesh drafts from") == 3 and "drafts no more" not in log
