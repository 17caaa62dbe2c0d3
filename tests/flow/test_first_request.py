"""A stranger's first minutes: start, ask, read, stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import openai
import pytest
from running_mesh import ROLES, RunningMesh, descendants, has_ended, running_mesh, until
from sse_client import MODEL, body, complete


async def test_a_streamed_completion_passes_through_four_processes(mock_mesh: RunningMesh) -> None:
    async with aiohttp.ClientSession() as session:
        answer = await complete(session, mock_mesh.url, body("one two three", max_tokens=40, ignore_eos=True))
    assert answer.completed and answer.ends == 1 and answer.finish_reason == "length"
    assert answer.usage is not None and answer.usage["completion_tokens"] == 40
    assert len({mock_mesh.pid(role) for role in ROLES}) == 4


def test_the_openai_client_reads_chat_and_completion_strictly(mock_mesh: RunningMesh) -> None:
    client = openai.OpenAI(
        base_url=f"{mock_mesh.url}/v1", api_key="none", _strict_response_validation=True, max_retries=0
    )
    model = client.models.list().data[0].id
    chat = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(chat)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] in (
        ["length"],
        ["stop"],
    )
    assert chunks[-1].usage is not None and 0 < chunks[-1].usage.completion_tokens <= 16
    whole = client.completions.create(model=model, prompt="Hello", max_tokens=8, temperature=0)
    assert whole.usage is not None and whole.usage.completion_tokens <= 8 and whole.choices[0].finish_reason


def test_every_process_serves_metrics_and_health_of_its_own(mock_mesh: RunningMesh) -> None:
    for offset, role in enumerate(ROLES):
        order = ("streamer", "tokenizer", "proposer", "worker")
        port = mock_mesh.metrics_base + order.index(role)
        assert mock_mesh.get("/health/live", port)[0] == 200, (offset, role)
        status, text = mock_mesh.get("/health/ready", port)
        assert status == 200 and json.loads(text)["role"] == role
        assert "specmesh:" in mock_mesh.get("/metrics", port)[1]


async def test_speculation_leaves_its_counts_in_the_scrape(mock_mesh: RunningMesh) -> None:
    """A draft may come late: its step goes on without it, and after a few of them so do all steps for half a second. So
    on a busy machine a whole request may be without drafts; the next ones are not."""
    accepted = "specmesh:spec_decode_num_accepted_tokens_total"
    before = mock_mesh.metrics("worker").get(accepted, 0.0)
    after: dict[str, float] = {}
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while after.get(accepted, 0.0) <= before:
            answer = await complete(
                session, mock_mesh.url, body("again and again and again", max_tokens=200, ignore_eos=True)
            )
            assert answer.completed
            after = mock_mesh.metrics("worker")
    assert after[accepted] <= after["specmesh:spec_decode_num_draft_tokens_total"]


def repeating(method: str) -> dict[str, object]:
    return body("again and again and again", max_tokens=200, ignore_eos=True, speculation={"method": method})


async def test_a_request_that_asks_for_suffix_gets_its_drafts_and_the_same_text(mock_mesh: RunningMesh) -> None:
    """The proposer may be compiling, and drafts may come late: those requests go without, and the next ones do not."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(120):
        plain = await complete(session, mock_mesh.url, repeating("naive"))
        accepted = 0
        while not accepted:
            answer = await complete(session, mock_mesh.url, repeating("suffix"))
            assert answer.completed and answer.ends == 1 and answer.text == plain.text
            assert answer.usage is not None and answer.usage["completion_tokens"] == 200
            accepted = (answer.speculation or {}).get("num_accepted_draft_tokens", 0)
    drafted = mock_mesh.by_label("proposer", "specmesh:proposer_draft_tokens_total", "proposer")
    assert drafted["suffix"] >= accepted


async def test_the_mock_engine_serves_no_grammars(mock_mesh: RunningMesh) -> None:
    asked, url = {"model": MODEL, "prompt": "a", "guided_regex": "a"}, f"{mock_mesh.url}/v1/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=asked) as answer:
        status, told = answer.status, await answer.json()
    assert status == 400 and "serves no grammars" in told["error"]["message"]


def test_ctrl_c_leaves_no_process_exit_code_zero_and_no_warning(tmp_path: Path) -> None:
    with running_mesh(tmp_path, engine="mock") as mesh:
        assert len(descendants(mesh.process.pid)) >= 4
        assert mesh.stop() == 0
        assert [line for line in mesh.text().splitlines() if re.search("WARNING|ERROR|lost", line)] == []


def test_help_is_quick_and_says_how_to_start() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "services.cli", "--help"], capture_output=True, text=True, timeout=20, check=True
    ).stdout
    assert "up" in shown and "doctor" in shown


# What the mesh of all these tests goes through at its end -------------------------------------------------------


@pytest.mark.parametrize("role", ["tokenizer", "proposer", "worker"])
def test_a_stopped_role_shows_in_ready_within_three_seconds(role: str, mock_mesh: RunningMesh) -> None:
    pid = mock_mesh.kill(role, signal.SIGSTOP)
    try:
        until(
            lambda: role in mock_mesh.get("/health/ready")[1] and not mock_mesh.healthy(),
            3.0,
            why=lambda: mock_mesh.get("/health/ready"),
        )
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    until(lambda: mock_mesh.healthy(), 30.0, why=lambda: mock_mesh.text()[-3000:])


def test_killing_the_supervisor_ends_its_children_within_two_seconds(mock_mesh: RunningMesh) -> None:
    left = descendants(mock_mesh.process.pid)
    assert len(left) >= 4
    mock_mesh.process.kill()
    mock_mesh.process.wait()
    until(lambda: all(has_ended(pid) for pid in left), 2.0, why=lambda: f"left of {left}")
