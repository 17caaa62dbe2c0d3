"""Suffix decoding as a client meets it: asked for by name, through four processes, on a text that repeats itself."""

from __future__ import annotations

import asyncio
import re

import aiohttp
from running_mesh import ROLES, RunningMesh
from sse_client import Answer, body, complete


def repeating(method: str) -> dict[str, object]:
    return body("again and again and again", max_tokens=200, ignore_eos=True, speculation={"method": method})


async def test_a_request_that_asks_for_suffix_gets_its_drafts_and_the_same_text(mock_mesh: RunningMesh) -> None:
    """The proposer may be compiling, and drafts may come late: those requests go without, and the next ones do not."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(120):
        plain = await complete(session, mock_mesh.url, repeating("naive"))
        accepted = 0
        while not accepted:
            answer = await complete(session, mock_mesh.url, repeating("suffix"))
            assert_whole(answer)
            assert answer.text == plain.text
            accepted = (answer.speculation or {}).get("num_accepted_draft_tokens", 0)
    _, scrape = mock_mesh.get("/metrics", mock_mesh.metrics_base + ROLES.index("proposer"))
    drafted = re.search(r'specmesh:proposer_draft_tokens_total{proposer="suffix"} (\S+)', scrape)
    assert drafted is not None and float(drafted[1]) >= accepted


def assert_whole(answer: Answer) -> None:
    assert answer.completed and answer.ends == 1
    assert answer.usage is not None and answer.usage["completion_tokens"] == 200
