"""Mutated bodies with schemas, expressions, grammars and tools against a whole mesh: whatever comes is compiled or
refused, and the mesh goes on as it was."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import orjson
import pytest
from mutated_bodies import MODEL, SEEDS, mutated
from running_mesh import RunningMesh, mesh_fixture

pytestmark = [pytest.mark.model, pytest.mark.slow]

FIELDS = {"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
          "guided_json_object", "tools"}  # fmt: skip
HELD: list[tuple[str, dict[str, Any]]] = [(path, body) for path, body in SEEDS if FIELDS & set(body)]
AT_A_TIME = 8
# Answers whose max_tokens was mutated end here.
mesh = mesh_fixture("module", dtype="float32", served_model_name=MODEL, max_context=512)


async def bombard(mesh: RunningMesh, count: int, seed: int) -> dict[int, int]:
    draw = random.Random(seed)
    statuses: dict[int, int] = {}

    async def worker() -> None:
        for _ in range(count // AT_A_TIME):
            path, body = draw.choice(HELD)
            data = mutated(draw, {"max_tokens": 4, **body})
            headers = {"Content-Type": "application/json"}
            async with http.post(mesh.url + path, data=data, headers=headers) as response:
                answer = await response.read()
                statuses[response.status] = statuses.get(response.status, 0) + 1
                assert response.status in (200, 400, 404, 413), (response.status, data[:5000], answer)
                if response.status != 200:
                    more = set() if path.startswith("/v1/messages") else {"param", "code"}
                    assert set(orjson.loads(answer)["error"]) == {"message", "type"} | more

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        await asyncio.gather(*(worker() for _ in range(AT_A_TIME)))
    return statuses


@pytest.mark.parametrize("count", [160, 20_000])
async def test_a_mutated_grammar_is_compiled_or_refused(mesh: RunningMesh, count: int) -> None:
    before = mesh.processes()
    statuses = await bombard(mesh, count, seed=count)
    assert statuses[200] > count / 50 and statuses[400] > count / 10
    assert mesh.processes() == before
