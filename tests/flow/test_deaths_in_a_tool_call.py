"""Law 3 where a call is half written: kill the worker or the proposer, and the call is that of an undisturbed run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
import pytest
from running_mesh import RunningMesh
from sse_client import MODEL, events

pytestmark = [pytest.mark.model, pytest.mark.slow]

# So long that it isn't over when its beginning arrives.
LETTER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "write_letter",
        "description": "Writes a letter",
        "parameters": {
            "type": "object",
            "properties": {
                "to": {"type": "string", "maxLength": 20},
                "text": {"type": "string", "minLength": 300, "maxLength": 400},
                "language": {"enum": ["english", "french"]},
            },
            "required": ["to", "text", "language"],
            "additionalProperties": False,
        },
    },
}
ASKED = {
    "model": MODEL, "messages": [{"role": "user", "content": "Write to Ana that the ferry leaves at nine."}],
    "tools": [LETTER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400, "stream": True,
}  # fmt: skip
# Characters of arguments after which the blow falls.
BEGUN = 40
# Of a blow that was to fall before the end.
TRIES = 5
SAMPLINGS = {"greedy": {"temperature": 0}, "seeded": {"temperature": 0.8, "seed": 3}}
_runs = itertools.count()


class Called:
    """The only call of an answer, as its deltas told it."""

    def __init__(self) -> None:
        self.name = self.arguments = ""
        self.ends: list[str] = []

    @property
    def told(self) -> tuple[str, str, list[str]]:
        return self.name, self.arguments, self.ends

    def hear(self, choice: dict[str, Any]) -> None:
        for delta in choice["delta"].get("tool_calls") or ():
            assert delta["index"] == 0
            self.name += delta["function"].get("name") or ""
            self.arguments += delta["function"].get("arguments") or ""
        if choice["finish_reason"]:
            self.ends.append(choice["finish_reason"])


async def called(mesh: RunningMesh, on_begun: Callable[[], object] | None = None, **more: Any) -> Called:
    """Nothing is drafted from another answer: that would be over at once."""
    body = {**ASKED, "cache_salt": f"run {next(_runs)}", **more}
    heard = Called()
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session,
        session.post(mesh.url + "/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        async for event in events(response):
            assert event is None or "error" not in event, event
            for choice in (event or {}).get("choices", []):
                heard.hear(choice)
            if on_begun is not None and len(heard.arguments) >= BEGUN:
                assert not heard.ends
                on_begun()
                on_begun = None
    return heard


async def struck(mesh: RunningMesh, role: str, **more: Any) -> Called:
    """A dead worker's request goes to the next one: that tells whether the blow fell before the end."""
    for _ in range(TRIES):
        before = mesh.metrics("streamer")["specmesh:request_retries_total"]
        pid = mesh.pid(role)
        heard = await called(mesh, partial(mesh.kill, role), **more)
        mesh.wait_for_another(role, pid)
        if role != "worker" or mesh.metrics("streamer")["specmesh:request_retries_total"] > before:
            return heard
    raise AssertionError(f"in {TRIES} tries the call was over before the {role} was killed")


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
async def test_a_death_in_the_middle_of_a_call_changes_no_character_of_it(
    float32_mesh: RunningMesh, sampling: dict[str, Any]
) -> None:
    calm = await called(float32_mesh, speculation={"off": True}, **sampling)
    assert calm.name == "write_letter" and calm.ends == ["tool_calls"]
    assert len(json.loads(calm.arguments)["text"]) >= 300
    for role in ("proposer", "worker"):
        assert (await struck(float32_mesh, role, **sampling)).told == calm.told, role
