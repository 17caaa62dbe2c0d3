"""Law 3 through the whole mesh: whatever proposes, a client sees the same bytes as without speculation.

Four real processes on ipc, HTTP and SSE from outside, and every sampling parameter in the mix; the proposer's place
is taken by those of guessers.py. And what the other strategies and policies promise: the same distribution, and that
an answer says whether that was kept.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sse_client import MODEL, events

from bench.failures.separate_roles import SeparateRoles, separate_roles

pytestmark = pytest.mark.model

DRAFT = 8
AT_A_TIME = 16  # with drafts
ALONE = 4  # without: few enough that batches differ from those with drafts
GUESSERS = str(Path(__file__).with_name("guessers.py"))

# Ids of SmolLM2: " the", ",", ".", "\n", " and", " of", " a"
THE, COMMA, STOP, LINE, AND, OF, A = 260, 28, 30, 198, 284, 282, 253
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 0, "logprobs": 3},
    {"temperature": 0, "bad_words": [" the", ",", "in the", "one"]},
    {"temperature": 0.9, "logprobs": 2, "n": 2},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 0.9, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"temperature": 0.7, "min_p": 0.05, "bad_words_token_ids": [[THE], [COMMA, AND], [LINE, LINE]]},
    {"temperature": 0, "allowed_token_ids": list(range(250, 1500)), "logprobs": 1},
    {"temperature": 0.7, "stop": ["\n\n", " is", "three"], "logprobs": 0},
    # Likely ends, whatever a processor's rounding makes of the texts.
    {"temperature": 0.8, "min_tokens": 10, "stop_token_ids": [COMMA, STOP, LINE], "logit_bias": {str(COMMA): 6.0}},
    {
        "temperature": 0, "min_tokens": 8, "stop_token_ids": [COMMA], "stop": [" a", "2"], "logprobs": 2,
        "logit_bias": {str(A): 8.0},
    },
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 0, "logit_bias": {str(THE): -100, str(OF): 4.0, str(A): 2.5}},
    {"temperature": 1.1, "allowed_token_ids": list(range(250, 3000)), "presence_penalty": 0.5},
    {"temperature": 0, "n": 2, "frequency_penalty": 0.6, "logit_bias": {str(LINE): -5}},
    {
        "temperature": 0.9, "top_k": 100, "top_p": 0.97, "min_p": 0.01, "repetition_penalty": 1.1, "logprobs": 5,
        "presence_penalty": 0.2, "frequency_penalty": 0.1, "logit_bias": {str(AND): -1.5}, "min_tokens": 12,
        "bad_words": ["because", "of the"], "stop": ["###", "because"], "stop_token_ids": [LINE],
    },
]  # fmt: skip
BEGINNINGS = (
    "Count on from {0}: {0}, {1}, {2},",
    "Once upon a time {0} wolves lived in a wood with {1} foxes. One day",
    "def add_{0}(x):\n    return x + {0}\n\ndef add_{1}(x):\n    return x +",
    "Repeat after me: red green {0} red green {0} red green",
    "The year {0} is remembered because",
    "Q: What is {0} + {1}?\nA: {0} + {1} =",
    "{{\"id\": {0}, \"name\": \"one\"}}, {{\"id\": {1}, \"name\":",
    "Dear Sir or Madam,\n\nI am writing about invoice {0}, which",
)  # fmt: skip


def wanted(index: int, tokens: int, **more: Any) -> dict[str, Any]:
    """Each prompt once, so that the oracle can tell whose text it sees."""
    number = 100 + 3 * index
    sampling = SAMPLINGS[index % len(SAMPLINGS)]
    return {
        "model": MODEL,
        "prompt": BEGINNINGS[index % len(BEGINNINGS)].format(number, number + 1, number + 2),
        "max_tokens": tokens,
        "seed": 1000 + index,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "ignore_eos": index % 3 == 0,
        **sampling,
        **more,
    }


def whole(index: int, tokens: int) -> dict[str, Any]:
    """As wanted, and nothing ends it before its length."""
    body = wanted(index, tokens, ignore_eos=True, n=1)
    return {name: value for name, value in body.items() if name not in ("stop", "stop_token_ids", "min_tokens")}


def few() -> list[dict[str, Any]]:
    return [whole(index, 24) if index % 4 == 0 else wanted(index, 24) for index in range(12)]


def many() -> list[dict[str, Any]]:
    """200, of which 20 are long: collapse shows late."""
    return [whole(index, 512) if index % 10 == 0 else wanted(index, 16 + index * 7 % 49) for index in range(200)]


# What a client sees --------------------------------------------------------------------------------------


@dataclass
class Choice:
    prompt: list[int] = field(default_factory=list)
    text: str = ""
    ids: list[int] = field(default_factory=list)
    ends: list[tuple[Any, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[dict[str, float]] = field(default_factory=list)

    def exactly(self) -> tuple[Any, ...]:
        """What has to be the same byte for byte."""
        names = [list(top) for top in self.tops]
        return self.prompt, self.text, self.ids, self.ends, self.tokens, self.offsets, names

    def numbers(self) -> list[float]:
        return self.logprobs + [value for top in self.tops for value in top.values()]


@dataclass
class Told:
    choices: list[Choice]
    usage: dict[str, Any] = field(default_factory=dict)
    speculation: dict[str, Any] = field(default_factory=dict)
    done: bool = False

    def exactly(self) -> tuple[Any, ...]:
        # What was cached depends on who asked before.
        counts = {name: count for name, count in self.usage.items() if name.endswith("_tokens")}
        return counts, [choice.exactly() for choice in self.choices]

    def numbers(self) -> list[float]:
        return [value for choice in self.choices for value in choice.numbers()]


async def tell(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Told:
    told = Told([Choice() for _ in range(body.get("n", 1))])
    async with session.post(url + "/v1/completions", json=body) as response:
        assert response.status == 200, (body, await response.text())
        async for event in events(response):
            _hear(told, event)
    assert told.done and all(len(choice.ends) == 1 for choice in told.choices), (body, told)
    return told


def _hear(told: Told, event: dict[str, Any] | None) -> None:
    if event is None:
        told.done = True
        return
    assert "error" not in event, event
    told.usage = event.get("usage") or told.usage
    told.speculation = event.get("metrics", {}).get("speculative_decoding") or told.speculation
    for each in event["choices"]:
        choice = told.choices[each["index"]]
        choice.text += each["text"]
        choice.ids += each.get("token_ids", [])
        choice.prompt = each.get("prompt_token_ids", choice.prompt)
        if each["finish_reason"]:
            choice.ends.append((each["finish_reason"], each["stop_reason"]))
        if each["logprobs"]:
            choice.tokens += each["logprobs"]["tokens"]
            choice.offsets += each["logprobs"]["text_offset"]
            choice.logprobs += each["logprobs"]["token_logprobs"]
            choice.tops += each["logprobs"]["top_logprobs"] or []


async def _tell_all(url: str, bodies: list[dict[str, Any]], at_a_time: int) -> list[Told]:
    gate = asyncio.Semaphore(at_a_time)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1800)) as session:

        async def one(body: dict[str, Any]) -> Told:
            async with gate:
                return await tell(session, url, body)

        return await asyncio.gather(*map(one, bodies))


# The mesh and its proposers ------------------------------------------------------------------------------


class Stage:
    """A mesh whose proposer is what the next test wants, and what was said without any."""

    def __init__(self, mesh: SeparateRoles) -> None:
        self.mesh = mesh
        self.playing = "ngram"
        self._off: dict[str, list[Told]] = {}
        self.texts = mesh.folder / "texts"

    def say(self, bodies: list[dict[str, Any]], at_a_time: int = AT_A_TIME, **speculation: Any) -> list[Told]:
        asked = [{**body, "speculation": {"num_speculative_tokens": DRAFT, **speculation}} for body in bodies]
        return asyncio.run(_tell_all(self.mesh.url, asked, at_a_time))

    def off(self, name: str, bodies: list[dict[str, Any]]) -> list[Told]:
        if name not in self._off:
            self._off[name] = self.say(bodies, ALONE, method="naive")
        return self._off[name]

    def play(self, kind: str, known: list[Told]) -> None:
        """From here on this one proposes; what `known` says is what an oracle knows."""
        if kind != "ngram":
            lines = [[choice.prompt, choice.ids] for told in known for choice in told.choices]
            self.texts.write_text("\n".join(map(json.dumps, lines)))
        if kind != self.playing or kind != "ngram":
            self.mesh.replace_proposer(() if kind == "ngram" else (GUESSERS, kind, str(self.texts)))
            self.playing = kind
        # Sockets connect when they do: until the target asks this one, whoever speaks is heard without drafts.
        while not self.mesh.metrics("proposer").get("specmesh:proposer_batch_seconds_count"):
            self.say([wanted(999, 8)], method="ngram")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    # Drafts are waited for: a machine that is busy with other work would miss them.
    settings = {"dtype": "int8", "draft_deadline_ms": 10000.0, "allow_lossy": True, "num_speculative_tokens": DRAFT}
    with separate_roles(tmp_path_factory.mktemp("roles"), **settings) as mesh:
        yield Stage(mesh)


def counted(told: list[Told], name: str) -> int:
    return sum(each.speculation.get(name, 0) for each in told)


def assert_the_same(off: list[Told], on: list[Told], bodies: list[dict[str, Any]]) -> None:
    differ = [i for i, (one, other) in enumerate(zip(off, on, strict=True)) if one.exactly() != other.exactly()]
    assert not differ, [(bodies[i], off[i], on[i]) for i in differ[:2]]
    for body, one, other in zip(bodies, off, on, strict=True):
        assert one.numbers() == pytest.approx(other.numbers(), abs=1e-3), body


LOADS = {"few": few, "many": many}
EVERYONE = [
    ("few", "ngram"),
    ("few", "adversary"),
    *(pytest.param("many", kind, marks=pytest.mark.slow) for kind in ("ngram", "random", "oracle", "adversary")),
]


@pytest.mark.parametrize(("load", "proposer"), EVERYONE)
def test_speculation_changes_no_byte(stage: Stage, load: str, proposer: str) -> None:
    bodies = LOADS[load]()
    off = stage.off(load, bodies)
    assert all(not told.speculation for told in off)
    stage.play(proposer, off)
    refused = stage.mesh.metrics("worker")["specmesh:drafts_refused_total"]
    on = stage.say(bodies, method="ngram")
    assert_the_same(off, on, bodies)
    # That was no run without drafts.
    drafted, accepted = counted(on, "num_draft_tokens"), counted(on, "num_accepted_draft_tokens")
    assert drafted > sum(len(choice.ids) for told in on for choice in told.choices) / 4
    assert all(told.speculation.get("lossless", True) for told in on)
    refused = stage.mesh.metrics("worker")["specmesh:drafts_refused_total"] - refused
    if proposer == "random":
        assert accepted < drafted / 100
    else:
        assert accepted > 0
    if proposer == "oracle":
        # Of two answers to one prompt it can't tell which it sees before they part.
        single = [told for told in on if len(told.choices) == 1]
        assert counted(single, "num_accepted_draft_tokens") == counted(single, "num_draft_tokens")
    else:
        assert accepted < drafted
    assert (refused > 0) == (proposer == "adversary")


def test_the_requests_hold_every_sampling_parameter_and_end_in_every_way(stage: Stage) -> None:
    bodies = few()
    ends = {choice.ends[0] for told in stage.off("few", bodies) for choice in told.choices}
    assert ("length", None) in ends and ends & {("stop", COMMA), ("stop", STOP), ("stop", LINE)}
    assert {reason for _, reason in ends} & {" is", "three", "\n\n", " a", "2"}
    names = {name for body in many() for name in body}
    assert names >= {
        "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "logit_bias", "bad_words", "bad_words_token_ids", "allowed_token_ids", "min_tokens",
        "stop", "stop_token_ids", "ignore_eos", "logprobs", "n",
    }  # fmt: skip


# What other policies and strategies promise ----------------------------------------------------------------


def lengths_when_all_is_accepted(tokens: int) -> list[int]:
    """Drafts of a text of so many tokens: the first comes out of the prompt, the last is the target's own."""
    drafts, left = [], tokens - 1
    while left > 0:
        drafts.append(min(DRAFT, left - 1))
        left -= drafts[-1] + 1
    return [length for length in drafts if length]


@pytest.mark.parametrize("load", ["few", pytest.param("many", marks=pytest.mark.slow)])
def test_when_all_of_an_oracles_drafts_are_taken_the_mean_accepted_length_is_the_drafts(
    stage: Stage, load: str
) -> None:
    bodies = LOADS[load]()
    off = stage.off(load, bodies)
    stage.play("oracle", off)
    endless = [body["ignore_eos"] and not {"stop", "stop_token_ids"} & set(body) for body in bodies]
    places = [i for i, body in enumerate(bodies) if endless[i] and body.get("n", 1) == 1]
    on = stage.say([bodies[i] for i in places], method="ngram", accept_policy="accept_all")
    assert len(on) >= 3
    for told, place in zip(on, places, strict=True):
        drafts = lengths_when_all_is_accepted(bodies[place]["max_tokens"])
        assert told.speculation["num_draft_tokens"] == told.speculation["num_accepted_draft_tokens"] == sum(drafts)
        assert told.speculation["mean_acceptance_length"] == 1 + sum(drafts) / len(drafts)
        assert told.speculation["lossless"] is False
    # Who is believed and right changes nothing.
    assert_the_same([off[i] for i in places], on, [bodies[i] for i in places])


@pytest.mark.parametrize("strategy", ["rejection", "block"])
@pytest.mark.parametrize("proposer", ["ngram", pytest.param("oracle", marks=pytest.mark.slow)])
def test_strategies_that_keep_the_distribution_say_so_and_give_logprobs_of_their_own_tokens(
    stage: Stage, strategy: str, proposer: str
) -> None:
    bodies = [wanted(index, 32, logprobs=0, n=1) for index in range(17) if SAMPLINGS[index]["temperature"]]
    stage.play(proposer, stage.off("sampled", bodies) if proposer == "oracle" else [])
    on = stage.say(bodies, method="ngram", verify_strategy=strategy)
    assert counted(on, "num_accepted_draft_tokens") > 0
    for body, told in zip(bodies, on, strict=True):
        [choice] = told.choices
        assert len(choice.ids) == len(choice.logprobs) and told.usage["completion_tokens"] <= 32
        if told.speculation:
            assert (told.speculation["verify_strategy"], told.speculation["lossless"]) == (strategy, True)
        assert all(token in body.get("allowed_token_ids", [token]) for token in choice.ids)
    assert_logprobs_are_the_models(stage, [told.choices[0] for told in on])


def assert_logprobs_are_the_models(stage: Stage, choices: list[Choice]) -> None:
    """Each text is given as a prompt up to a token that then alone is allowed: what does the model say of it?"""
    places = [(choice, at) for choice in choices for at in range(0, len(choice.ids), 7)]
    again = [
        {
            **wanted(0, 1),
            "prompt": choice.prompt + choice.ids[:at],
            "allowed_token_ids": [choice.ids[at]],
            "logprobs": 0,
        }
        for choice, at in places
    ]
    for (choice, at), told in zip(places, stage.say(again, method="naive"), strict=True):
        assert told.choices[0].ids == [choice.ids[at]]
        assert told.choices[0].logprobs == pytest.approx([choice.logprobs[at]], abs=1e-3)
