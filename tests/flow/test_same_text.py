"""Law 3 with the real model through the whole mesh: speculation, batch mates and the wire change no token."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from running_mesh import RunningMesh
from sse_client import Answer, body, complete

pytestmark = [pytest.mark.slow, pytest.mark.model]

PROMPTS = [
    "The history of the lighthouse begins with",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "List the planets: Mercury, Venus, Earth,",
    "Once upon a time, in a village by the sea, there lived",
    "Repeat after me: red green blue red green blue red green blue",
    "The theory of relativity says that",
    "Q: What is the capital of France?\nA:",
    "In 1969, the first people walked on the moon. In 1970,",
]
NAIVE = {"method": "naive"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 8}


async def ask(mesh: RunningMesh, requests: list[dict[str, object]], together: bool) -> list[Answer]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as session:
        if together:
            answers = await asyncio.gather(*(complete(session, mesh.url, r) for r in requests))
        else:
            answers = [await complete(session, mesh.url, r) for r in requests]
    assert all(a.completed for a in answers), [a.error for a in answers]
    return answers


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 0.9, "top_p": 0.95, "seed": 7}], ids=["greedy", "seeded"]
)
async def test_text_is_the_same_with_speculation_on_and_off_alone_and_in_a_batch(
    real_mesh: RunningMesh, sampling: dict[str, object]
) -> None:
    def requests(speculation: dict[str, object]) -> list[dict[str, object]]:
        return [body(p, max_tokens=96, speculation=speculation, **sampling) for p in PROMPTS]

    plain = await ask(real_mesh, requests(NAIVE), together=False)
    for speculation, together in ((NAIVE, True), (NGRAM, False), (NGRAM, True)):
        answers = await ask(real_mesh, requests(speculation), together)
        assert [a.text for a in answers] == [a.text for a in plain], (speculation, together)
    drafted = sum((a.speculation or {}).get("num_accepted_draft_tokens", 0) for a in answers)
    assert drafted > 0  # the comparison compared something
