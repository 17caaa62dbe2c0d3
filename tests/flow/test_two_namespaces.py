"""Nothing that one API key is shown depends on what another said: drafts, where they came from, counts, the number of
steps and of messages, how much of a prompt was computed already, listings, refusals. A says X in one mesh and Y in
another; B asks the same in both. Times are not compared.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

import aiohttp
import pytest
from running_mesh import RunningMesh, running_mesh
from two_namespaces import (
    CORPUS,
    SETTINGS,
    SHARED,
    VAULT,
    A,
    B,
    Caller,
    Secret,
    Tenant,
    attacks,
    drafted,
    looks,
    own_drafts,
    ready,
    request,
)

SAYS_X, SAYS_Y = 1, 2


class World(NamedTuple):
    """B's record; and what shows that there was something to be found."""

    record: dict[str, Any]
    # What B asks for is made of A's secrets in the world in which it guesses right.
    attacked: list[Secret]
    # Drafted tokens: for A, of its own secrets; for B, of what A said where both opted in; for B, of each of its own.
    own: int
    shared: int
    of_b: list[int]
    listing_of_a: list[str]


async def warm(caller: Caller) -> None:
    """The proposer's loops may be compiling: until they are, there is nothing to see."""
    known = request([7, 8, 9], speculation={"namespace": "warm", "method": "suffix"})
    while not drafted(await caller.answer(known)):
        # Answers take a moment each: nothing spins.
        pass


async def drafts_come_from_the_corpus(caller: Caller, secret: Secret) -> None:
    """The first that asks for a corpus has it opened, which takes longer than its answer on a busy machine."""
    asked = request(secret.half, speculation={"method": "suffix", "corpus": CORPUS, "learn": False})
    while not drafted(await caller.answer(asked)):
        pass


async def play(mesh: RunningMesh, seed: int, attacked: list[Secret] | None = None) -> World:
    async with aiohttp.ClientSession() as session, asyncio.timeout(300):
        a, b = Caller(session, mesh.url, A), Caller(session, mesh.url, B)
        tenant = Tenant(a, seed)
        await warm(a)
        planted = await tenant.plant()
        attacked = attacked or [*planted, tenant.running]
        record: dict[str, Any] = {}
        async with tenant.saying():
            for what, asked in [*looks(attacked[0]), *attacks(attacked)]:
                record[what] = await b.shown(asked)
        text = (await b.answer(request(attacked[0].half, speculation={"off": True})))["choices"][0]["text"]
        for what, asked in own_drafts(attacked[0], text):
            record[what] = await b.shown(asked)
            if what.startswith("a corpus"):
                await ready(b)
                await drafts_come_from_the_corpus(b, attacked[0])
        record["corpora at the end"] = await b.shown(("GET", "/v1/corpora", {}))
        of_b = [drafted(record[what][2]) for what, asked in list(own_drafts(attacked[0], text))[1:]]
        _, _, listed = await a.shown(("GET", "/v1/corpora", {}))
        shared = await both_opt_in(a, b, planted[0])
        own = await tenant.draws_from_its_own(planted[0])
        mesh_map = json.dumps(await b.shown(("GET", "/v1/mesh", {})))
        assert not any(name in mesh_map for name in (CORPUS, VAULT, A))
    return World(record, attacked, own, shared, of_b, [card["name"] for card in listed["data"]])


async def both_opt_in(a: Caller, b: Caller, secret: Secret) -> int:
    """What B is drafted behind half of a text that A said in the namespace both name."""
    both = {"namespace": SHARED, "method": "suffix"}
    await a.answer(request(secret.prompt, speculation=both))
    return drafted(await b.answer(request(secret.half, speculation=both)))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, World]:
    def world(seed: int, attacked: list[Secret] | None = None) -> World:
        with running_mesh(tmp_path_factory.mktemp("mesh"), **SETTINGS) as mesh:
            return asyncio.run(play(mesh, seed, attacked))

    said_x = world(SAYS_X)
    return said_x, world(SAYS_Y, said_x.attacked)


def test_what_one_key_is_shown_doesnt_depend_on_what_another_said(worlds: tuple[World, World]) -> None:
    x, y = worlds
    assert len(x.record) > 150
    assert x.record.keys() == y.record.keys()
    differ = [what for what in x.record if x.record[what] != y.record[what]]
    assert not differ, "\n".join(f"{what}:\n  {x.record[what]}\n  {y.record[what]}" for what in differ[:3])


def test_of_a_text_it_never_heard_it_is_drafted_nothing(worlds: tuple[World, World]) -> None:
    """Not even something else: the same in both worlds might be the same leak in both."""
    for world in worlds:
        halves = {what: shown for what, shown in world.record.items() if what.startswith("half a secret")}
        first = [shown[2]["choices"][0]["runs"][:2] for shown in halves.values()]
        assert len(first) > 50
        # The prompt's own token, and the first step that might have had a draft.
        assert all(run["drafted"] == 0 and run["source"] == "" for runs in first for run in runs)


def test_it_is_drafted_from_what_is_its_own(worlds: tuple[World, World]) -> None:
    # Except by a hybrid from a prediction: it continues n-grams by suffixes.
    assert all(min(world.of_b[:-1]) >= 4 for world in worlds)


def test_there_was_something_to_be_found(worlds: tuple[World, World]) -> None:
    """A is drafted its own secret, and so is B as soon as both name one namespace."""
    for world in worlds:
        assert world.own >= 4 and world.shared >= 4


def test_another_key_takes_nothing_away(worlds: tuple[World, World]) -> None:
    assert all(world.listing_of_a == [CORPUS] for world in worlds)
