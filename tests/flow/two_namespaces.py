"""A tenant with secrets and another who wants them, for test_two_namespaces.py: what A says and stores, what B asks for
and is shown, but for times and ids made of chance.

The engine is the mock: what it answers follows from the position and the token before, so A's text decides nothing of
what B is told, unless it comes through drafts.

    a secret    h h h h h h h h | t | s s s s s s s s | a a a a a a a a
                half, no token    │   what nobody can   what the engine
                of it twice       │   guess             answers to that
                                  └─ what the engine says behind the half: whoever asks for that is at the right place
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from sse_client import MODEL

A, B = "key-of-a", "key-of-b"
SHARED = "team"
CORPUS, VAULT, SALT = "plans", "vault", "of-a"
METHODS = ("auto", "suffix", "ngram", "hybrid", "prediction", "naive")
# How the salts begin that nobody else has.
OWN = "own-"
HALF, REST, ANSWER = 40, 24, 40
SECRETS = 4
STEPS = 6

SETTINGS: dict[str, Any] = {
    "engine": "mock",
    "mock_profile": '{"step_ms": 1, "acceptance": 0.0, "vocab_size": 49152}',
    "api_keys": f"{A},{B}",
    "shared_namespaces": SHARED,
    "suffix_decoding_learn_prompts": "true",
    # Nobody goes on without a draft that is late: what is drafted doesn't depend on how busy this machine is.
    "draft_deadline_ms": 10000,
}

Asked = tuple[str, str, dict[str, Any]]


class Caller:
    def __init__(self, session: aiohttp.ClientSession, url: str, key: str) -> None:
        self._session, self._url = session, url
        self._headers = {"Authorization": f"Bearer {key}"}

    async def shown(self, asked: Asked) -> Any:
        """Status, headers and body, or all events of a stream, without what differs from answer to answer anyway."""
        method, path, body = asked
        given = {"params": body} if method in ("GET", "DELETE") else {"json": body}
        async with self._session.request(method, self._url + path, headers=self._headers, **given) as answer:
            text = await answer.text()
            headers = sorted(set(answer.headers) - {"Content-Length"})
        if answer.content_type != "text/event-stream":
            return [answer.status, headers, _lasting(json.loads(text))]
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [answer.status, headers, [_lasting(json.loads(event)) for event in events[:-1]], events[-1]]

    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        status, _, found = await self.shown(("POST", "/v1/completions", body))
        assert status == 200, found
        return found  # type: ignore[no-any-return]


def _lasting(body: Any) -> Any:
    return {name: value for name, value in body.items() if name not in ("id", "created")}


def request(prompt: list[int], **more: Any) -> dict[str, Any]:
    """With all that can be asked to be shown of drafts."""
    return {
        "model": MODEL, "prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": STEPS,
        "return_token_ids": True, "return_provenance": True, "return_drafts": True,
        "return_speculation_steps": True, "return_speculate_metrics": True, **more,
    }  # fmt: skip


# A ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Secret:
    half: list[int]
    prompt: list[int]
    answer: list[int]


class Tenant:
    """What A says is made of `seed`, and nothing else of A is."""

    def __init__(self, caller: Caller, seed: int) -> None:
        self._caller = caller
        self._chance = random.Random(seed)
        # Said all the time, by `saying`.
        self.running = Secret([], [], [])

    async def plant(self) -> list[Secret]:
        """In A's own namespace, in one that it names, behind its salt, and, the last one, in a corpus alone."""
        places: list[dict[str, Any]] = [{}, {"speculation": {"namespace": VAULT}}, {"cache_salt": SALT}]
        found = [await self._planted(place) for place in places]
        found.append(await self._planted({"speculation": {"learn": False}}))
        documents = {"corpus_id": CORPUS, "token_chunks": [found[-1].prompt + found[-1].answer]}
        await self._caller.shown(("POST", "/add_external_corpus", documents))
        await ready(self._caller)
        self.running = await self._planted({"speculation": {"learn": False}})
        return found

    async def _planted(self, place: dict[str, Any]) -> Secret:
        """Said twice: what is said often is drafted rather."""
        half = self._chance.sample(range(1000, 49000), HALF)
        unlearned = await self._caller.answer(request(half, max_tokens=1, speculation={"learn": False}))
        prompt = [*half, *_ids(unlearned), *self._chance.sample(range(1000, 49000), REST)]
        for method in ("naive", "suffix"):
            wish = {**place.get("speculation", {}), "method": method}
            answer = await self._caller.answer(request(prompt, **{**place, "max_tokens": ANSWER, "speculation": wish}))
        return Secret(half, prompt, _ids(answer))

    async def draws_from_its_own(self, secret: Secret) -> int:
        """How many tokens of its own text A is drafted, behind the half of a secret."""
        return drafted(await self._caller.answer(request(secret.half, speculation={"method": "suffix"})))

    @asynccontextmanager
    async def saying(self) -> AsyncIterator[None]:
        """All the time a request runs that says a secret: running texts are learned from, too."""

        async def say() -> None:
            for seed in itertools.count():
                asked = request(self.running.prompt, seed=seed, max_tokens=2000, speculation={"method": "suffix"})
                await self._caller.answer(asked)

        saying = asyncio.create_task(say())
        try:
            yield
        finally:
            assert not saying.done(), saying.exception()
            saying.cancel()
            await asyncio.wait({saying})


async def ready(caller: Caller, **place: str) -> None:
    """All corpora of this place are built."""
    while True:
        _, _, found = await caller.shown(("GET", "/v1/corpora", place))
        if found["data"] and all(card["state"] == "ready" for card in found["data"]):
            return
        await asyncio.sleep(0.05)


def _ids(answer: dict[str, Any]) -> list[int]:
    return answer["choices"][0]["token_ids"]  # type: ignore[no-any-return]


def drafted(answer: dict[str, Any]) -> int:
    return sum(run["drafted"] for run in answer["choices"][0]["runs"])


# B ----------------------------------------------------------------------------------------------------------


def attacks(secrets: list[Secret]) -> Iterator[tuple[str, Asked]]:
    """(what it is, what B asks), in order. `secrets` are those of the world in which B guesses right."""
    salts = itertools.count()
    for number, secret in enumerate(secrets):
        prompts = {
            "half a secret": secret.half,
            "a secret": secret.prompt,
            "a secret and half its answer": secret.prompt + secret.answer[: ANSWER // 2],
        }
        ways = [(method, *place) for method in METHODS for place in _places(salts).items()]
        # Every method in every place with every secret; the prompts take turns.
        for turn, (method, where, place) in enumerate(ways):
            said, prompt = list(prompts.items())[(turn + turn // len(prompts) + number) % len(prompts)]
            # When its own text is learned, while it runs, is a matter of moments.
            wish = {**place.get("speculation", {}), "method": method, "learn": False}
            most = STEPS
            if method == "auto":
                # What it makes of a text that repeats itself depends on what steps cost: it has one chance, before
                # the text can.
                said, prompt, most = "half a secret", secret.half, 3
            asked = request(prompt, **{**place, "max_tokens": most, "speculation": wish})
            yield f"{said} {number}, {method}, {where}", ("POST", "/v1/completions", asked)
        streamed = request(secret.half, stream=True, stream_options={"include_usage": True}, max_tokens=STEPS)
        streamed |= {"cache_salt": f"stream {number}", "speculation": {"method": "suffix", "learn": False}}
        yield f"a stream of secret {number}", ("POST", "/v1/completions", streamed)


def _places(numbers: Iterator[int]) -> dict[str, dict[str, Any]]:
    """Where B says it."""

    def own() -> dict[str, Any]:
        return {"cache_salt": f"{OWN}{next(numbers)}"}

    return {
        "in its own namespace": {},
        "with A's salt": {"cache_salt": SALT},
        "in A's vault": {"speculation": {"namespace": VAULT}},
        "in a shared one that A wasn't in": {**own(), "speculation": {"namespace": SHARED}},
        "from A's corpus": {**own(), "speculation": {"corpus": CORPUS}},
        "alone": own(),
    }


def looks(secret: Secret) -> Iterator[tuple[str, Asked]]:
    """At corpora, and at what errors say."""
    for path in ("/v1/corpora", "/list_external_corpora"):
        yield f"GET {path}", ("GET", path, {})
    for name, value in (("namespace", VAULT), ("cache_salt", SALT), ("namespace", SHARED)):
        yield f"corpora, {name} {value}", ("GET", "/v1/corpora", {name: value})
        yield f"away with it, {name} {value}", ("DELETE", f"/v1/corpora/{CORPUS}", {name: value})
    yield "away with it", ("DELETE", f"/v1/corpora/{CORPUS}", {})
    yield "away with it, as SGLang", ("POST", "/remove_external_corpus", {"corpus_id": CORPUS})
    wrong: list[dict[str, Any]] = [
        {"speculation": {"method": VAULT}}, {"speculation": {"corpus": 7}}, {"speculation": {"corpora": [CORPUS, ""]}},
        {"speculation": {"namespace": [VAULT]}}, {"speculation": {"namespace": "id of a"}}, {"cache_salt": 4},
        {"prompt": [*secret.prompt, 10**6]}, {"prompt": secret.prompt * 200}, {"prediction": secret.prompt},
    ]  # fmt: skip
    for change in wrong:
        yield f"refused: {list(change)}", ("POST", "/v1/completions", {**request(secret.prompt), **change})


def own_drafts(secret: Secret, text: str) -> Iterator[tuple[str, Asked]]:
    """B guesses from what is its own: where drafts come, they are the same, too. Of its corpus the half is A's text."""
    mine = [*secret.prompt[: HALF + 1], *range(900, 924)]
    yield (
        "a corpus with the name of A's",
        ("POST", "/add_external_corpus", {"corpus_id": CORPUS, "token_chunks": [mine]}),
    )
    for method in ("suffix", "hybrid"):
        asked = request(secret.half, speculation={"method": method, "corpus": CORPUS, "learn": False})
        yield f"from its own corpus, {method}", ("POST", "/v1/completions", asked)
    for method in ("prediction", "hybrid"):
        asked = request(secret.half, prediction={"type": "content", "content": text})
        asked |= {"cache_salt": "predicted", "speculation": {"method": method, "learn": False}}
        yield f"a prediction, {method}", ("POST", "/v1/completions", asked)
